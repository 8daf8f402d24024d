#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <functional>
#include <future>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"

namespace linkboy {

/// Copies contents into separate memory on the CPU, so that later changes by the training loop do
/// not affect the copy. Tensors that share a storage also share one in the copy.
class Snapshot {
 public:
  /// @param largest_pinned  Size in bytes of the largest device storage that is copied into
  ///        page-locked memory. LibTorch rounds such memory up to a power of two and keeps it. The
  ///        host waits for the copies of larger storages.
  explicit Snapshot(int64_t largest_pinned = 0) : largest_pinned_(largest_pinned) {}

  /// Returns a copy of `contents`. Overwrites the previous copy if nothing else references its
  /// tensors, because allocating new memory would take longer than copying. Copies from a device
  /// into page-locked memory are queued after its work; their bytes are complete after `wait`.
  StateDict take(const StateDict& contents);

  /// Waits for the copies that the last `take` has queued. Another thread may call it.
  void wait() const;

 private:
  int64_t largest_pinned_;
  std::vector<at::Tensor> buffers_;
  std::vector<c10::Event> arrivals_;  // one per device, recorded after the copies from it
};

/// Runs one job at a time on a separate thread. Use it from one thread.
class BackgroundJob {
 public:
  /// Waits for the job in progress. An error that neither `start` nor `wait` has thrown becomes a
  /// warning.
  ~BackgroundJob();

  /// Waits for the previous job, then starts `job`.
  /// @throws The error of the previous job; `job` is then not started.
  void start(std::function<void()> job);

  /// Waits for the job in progress.
  /// @throws The error of the job, once.
  void wait();
  /// Waits for the job in progress and leaves its error to `wait`.
  void join();

 private:
  std::future<void> running_;
};

/// The members of a Trainer that save in the background. The job ends before the snapshot is
/// destroyed.
struct BackgroundSave {
  Snapshot snapshot{int64_t{1} << 30};
  BackgroundJob job;
};

}  // namespace linkboy
