#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

namespace linkboy::simulated_cuda {

/// Runs work in order, on a thread of its own. Work begins late: it waits for a fixed time, or
/// until somebody waits for it. So a host that looks at results too early sees that they are not
/// there.
class Stream {
 public:
  using Work = std::function<void()>;

  Stream(int id, int device, int priority) : id(id), device(device), priority(priority) {}

  /// Returns the work's position, for `wait` and `is_done`.
  std::uint64_t push(Work work);
  std::uint64_t last_position() const;
  bool is_done(std::uint64_t position) const;
  /// Has the work up to `position` begin now, and waits until it is done.
  void wait(std::uint64_t position);
  /// The same with a limit; returns whether the work is done.
  bool wait(std::uint64_t position, std::chrono::milliseconds limit);

  std::string name() const;

  const int id;  // unique on the machine
  const int device;
  const int priority;

 private:
  struct Item {
    Work work;
    std::chrono::steady_clock::time_point begin;
  };

  void run();

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable finished_;
  std::deque<Item> items_;
  std::uint64_t num_pushed_ = 0;
  std::uint64_t num_done_ = 0;
  std::uint64_t wanted_ = 0;  // the last position that somebody waits for
  bool has_thread_ = false;
};

}  // namespace linkboy::simulated_cuda
