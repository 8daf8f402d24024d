#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "linkboy/state_dict.hpp"

namespace linkboy {

/// Copies contents into memory of its own, on the CPU: what the training loop changes from then on
/// does not reach them. Tensors that share a storage share one again.
class Snapshot {
 public:
  /// Overwrites the copy before if nobody else holds its tensors: fresh memory would cost more than
  /// the copying.
  StateDict take(const StateDict& contents);

 private:
  std::vector<at::Tensor> buffers_;
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
  Snapshot snapshot;
  BackgroundJob job;
};

}  // namespace linkboy
