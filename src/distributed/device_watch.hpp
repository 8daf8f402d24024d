#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace linkboy {

/// Checks in a thread of its own that a device finishes what it does together with other ranks.
/// NCCL has no error for a rank that does not come: a host that waits for the device would wait for
/// ever.
class DeviceWatch {
 public:
  /// The watch's thread calls the functions.
  /// @param has_failed  Returns whether a reason is known already why the ranks cannot continue.
  /// @param find_cause  Called once, if `has_failed`, or with the name of a marked call that is not
  ///        done within `timeout`.
  /// @param call_off  Called after it. It makes the device stop waiting.
  DeviceWatch(c10::Device device, std::chrono::milliseconds timeout,
              std::function<bool()> has_failed,
              std::function<void(const std::string& late_call)> find_cause,
              std::function<void()> call_off);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  /// Watches what the device's current stream has to do for a call, until here.
  void mark(const char* call) noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  struct Mark {
    c10::Event event;
    Clock::time_point time;
    const char* call = "";
    bool is_set = false;
  };

  void run();
  bool is_late();

  const c10::Device device_;
  const std::chrono::milliseconds timeout_;
  const std::function<bool()> has_failed_;
  const std::function<void(const std::string&)> find_cause_;
  const std::function<void()> call_off_;

  std::mutex mutex_;  // guards the rest
  std::condition_variable end_;
  bool is_ending_ = false;
  Mark watched_;
  Mark latest_;  // the next to be watched: the host may stop at any one to wait for it
  std::thread thread_;
};

}  // namespace linkboy
