#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

namespace linkboy::simulated_cuda {

/// Runs work in order, on its own thread. Work begins after a fixed delay, or when another thread
/// waits for it. Therefore a host that reads results too early does not find them.
class Stream {
 public:
  using Work = std::function<void()>;

  Stream(int id, int device) : id(id), device(device) {}

  /// Adds work. Returns its position, for `wait` and `is_done`.
  std::uint64_t push(Work work);
  std::uint64_t last_position() const;
  bool is_done(std::uint64_t position) const;
  /// Makes the work up to `position` begin immediately, and waits until it is done, at most for
  /// `limit`.
  void wait(std::uint64_t position, std::chrono::seconds limit = std::chrono::hours(24));

  std::string name() const;

  const int id;  // unique within the machine
  const int device;

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
  std::uint64_t wanted_ = 0;  // the last position for which a thread waits
  bool has_thread_ = false;
};

}  // namespace linkboy::simulated_cuda
