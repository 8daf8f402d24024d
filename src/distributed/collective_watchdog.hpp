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

/// Checks in a separate thread that a device finishes its collectives. NCCL does not report an
/// error if a rank does not arrive; without the watch, a host that waits for the device would wait
/// forever.
class CollectiveWatchdog {
 public:
  /// The thread of the watch calls the functions.
  /// @param has_failed  Returns whether it is already known that the ranks cannot continue.
  /// @param find_cause  Called once if `has_failed` returns true, with an empty name, or if a
  ///        marked call is not done within `timeout`, with the name of that call.
  /// @param call_off  Called after `find_cause`. It makes the device stop waiting.
  CollectiveWatchdog(c10::Device device, std::chrono::milliseconds timeout,
                     std::function<bool()> has_failed,
                     std::function<void(const std::string& late_call)> find_cause,
                     std::function<void()> call_off);
  ~CollectiveWatchdog();
  CollectiveWatchdog(const CollectiveWatchdog&) = delete;
  CollectiveWatchdog& operator=(const CollectiveWatchdog&) = delete;

  /// Watches the work that a call has queued on the device's current stream so far.
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
  Mark latest_;  // watched next; the host may wait for any mark
  std::thread thread_;
};

}  // namespace linkboy
