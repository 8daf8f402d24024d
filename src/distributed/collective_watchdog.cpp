// A thread that aborts the collectives of a device if one of them does not finish in time.

#include "distributed/collective_watchdog.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <utility>

#include "checkpoint/lost_rank_flag.hpp"
#include "distributed/process_group_implementation.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

using namespace std::chrono_literals;

constexpr auto kWatchPeriod = 500ms;

/// The time after which all ranks know the cause. Aborting a collective on one rank may end it on
/// the others.
constexpr auto kNoticeTime = 2'000ms;

}  // namespace

CollectiveWatchdog::CollectiveWatchdog(c10::intrusive_ptr<c10d::Backend> backend,
                                       c10::Device device, std::chrono::milliseconds timeout,
                                       std::shared_ptr<Heartbeat> heartbeat,
                                       std::vector<int64_t> ranks)
    : backend_(std::move(backend)),
      device_(device),
      timeout_(timeout),
      heartbeat_(std::move(heartbeat)),
      ranks_(std::move(ranks)),
      watched_{.event = c10::Event(device.type()), .time = {}},
      latest_{.event = c10::Event(device.type()), .time = {}} {
  are_device_results_void = false;
  thread_ = std::thread([this] { run(); });
}

CollectiveWatchdog::~CollectiveWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  end_.notify_all();
  thread_.join();
}

void CollectiveWatchdog::mark(const char* call) noexcept {
  try {
    const auto stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
    const std::lock_guard lock(mutex_);
    latest_.event.record(stream);
    latest_.time = Clock::now();
    latest_.call = call;
    latest_.is_set = true;
  } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): waiting for the device throws it
  }
}

bool CollectiveWatchdog::is_late() {
  if (watched_.is_set && !watched_.event.query()) {
    return Clock::now() - watched_.time > timeout_;
  }
  watched_.is_set = false;
  std::swap(watched_, latest_);
  return false;
}

bool CollectiveWatchdog::has_failed() const {
  return heartbeat_->has_found_cause() || backend_->getError() != c10d::ErrorType::SUCCESS;
}

void CollectiveWatchdog::find_cause(const std::string& late_call) {
  if (late_call.empty()) {
    heartbeat_->find_cause(
        ranks_,
        {.late_call = "", .otherwise = "NCCL reports an error, although all ranks are alive"});
    return;
  }
  const std::string call = late_call + timeout_text(timeout_);
  heartbeat_->find_cause(ranks_,
                         {.late_call = call,
                          .otherwise = "all ranks reached " + call +
                                       ", but the device of one of them does not finish it"});
}

void CollectiveWatchdog::run() {
  try {
    c10::impl::VirtualGuardImpl(device_.type()).setDevice(device_);
    std::unique_lock lock(mutex_);
    bool is_too_late = false;
    do {
      if (end_.wait_for(lock, kWatchPeriod, [this] { return is_ending_; })) return;
      is_too_late = is_late();
    } while (!is_too_late && !has_failed());
    const std::string late_call = is_too_late ? watched_.call : "";
    lock.unlock();
    are_device_results_void = true;
    find_cause(late_call);
    std::this_thread::sleep_for(kNoticeTime);
    backend_->abort();
  } catch (const std::exception&) {
    // The device has failed, and code that uses it will report the error, too.
    TORCH_WARN("linkboy no longer watches ", device_.str(), ": ",
               message_of(std::current_exception()));
  }
}

}  // namespace linkboy
