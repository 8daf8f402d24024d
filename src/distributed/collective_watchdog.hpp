#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "distributed/heartbeat.hpp"

namespace linkboy {

/// Checks in a separate thread that a device finishes its collectives. NCCL does not report an
/// error if a rank does not arrive; without the watch, a host that waits for the device would wait
/// forever.
class CollectiveWatchdog {
 public:
  /// Watches until a marked call is not done within `timeout`, the backend reports an error, or it
  /// is known that the ranks cannot continue. Then finds the cause and aborts the collectives.
  /// @param ranks  The members of the group, by their global ranks.
  CollectiveWatchdog(c10::intrusive_ptr<c10d::Backend> backend, c10::Device device,
                     std::chrono::milliseconds timeout, std::shared_ptr<Heartbeat> heartbeat,
                     std::vector<int64_t> ranks);
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
  bool has_failed() const;
  void find_cause(const std::string& late_call);

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const c10::Device device_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<Heartbeat> heartbeat_;
  const std::vector<int64_t> ranks_;

  std::mutex mutex_;  // guards the rest
  std::condition_variable end_;
  bool is_ending_ = false;
  Mark watched_;
  Mark latest_;  // watched next; the host may wait for any mark
  std::thread thread_;
};

}  // namespace linkboy
