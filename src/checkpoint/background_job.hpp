#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"

namespace linkboy {

/// Copies contents into memory of its own, on the CPU: what the training loop changes from then on
/// does not reach them. Tensors that share a storage share one again.
class Snapshot {
 public:
  /// @param largest_pinned  Bytes of the largest device storage that is copied into page-locked
  ///        memory, which LibTorch rounds up to a power of two and keeps. The host waits for the
  ///        copies of larger ones.
  explicit Snapshot(int64_t largest_pinned = 0) : largest_pinned_(largest_pinned) {}

  /// Overwrites the copy before if nobody else holds its tensors: fresh memory would cost more than
  /// the copying. Copies from a device into page-locked memory are queued behind its work; their
  /// bytes are there after `wait`.
  StateDict take(const StateDict& contents);

  /// Waits for what the last `take` has queued. Another thread may call it.
  void wait() const;

 private:
  int64_t largest_pinned_;
  std::vector<at::Tensor> buffers_;
  std::vector<c10::Event> arrivals_;  // of the copies from each device
};

/// Runs one job at a time on a thread of its own. Used by one thread.
class BackgroundJob {
 public:
  /// Waits for the job in progress. What it threw and nobody has asked for becomes a warning.
  ~BackgroundJob();

  /// Waits for the job before, then starts `job`.
  /// @throws what the job before threw; `job` is not started then.
  void start(std::function<void()> job);

  /// Waits for the job in progress. @throws what it threw, once.
  void wait();
  /// Only waits; what it threw is left to `wait`.
  void join();

 private:
  std::thread thread_;
  std::exception_ptr failure_;  // written by the thread, read after it was joined
};

/// What a Trainer saves with. The job ends before the snapshot is gone.
struct BackgroundSave {
  Snapshot snapshot{int64_t{1} << 30};
  BackgroundJob job;
};

}  // namespace linkboy
