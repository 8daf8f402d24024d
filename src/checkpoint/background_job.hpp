#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <thread>

#include "linkboy/state_dict.hpp"

namespace linkboy {

/// The same contents in memory of their own, on the CPU: what the training loop changes from then
/// on does not reach them. Tensors that share a storage share one again.
StateDict snapshot(const StateDict& contents);

/// Runs one job at a time on a thread of its own. Used by one thread.
class BackgroundJob {
 public:
  ~BackgroundJob();

  /// Waits for the job before, then starts `job`.
  /// @throws what the job before threw; `job` is not started then.
  void start(std::function<void()> job);

  /// Waits for the job in progress. @throws what it threw, once.
  void wait();

 private:
  std::thread thread_;
  std::exception_ptr failure_;  // written by the thread, read after it was joined
};

}  // namespace linkboy
