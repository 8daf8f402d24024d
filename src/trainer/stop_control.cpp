// Collects stop requests, and decides how often the processes communicate to agree on one.

#include "trainer/stop_control.hpp"

#include <algorithm>
#include <utility>

namespace linkboy {
namespace {

using namespace std::chrono_literals;

/// The longest delay of a stop, too short for a user to notice.
constexpr std::chrono::nanoseconds kAgreementPeriod = 100ms;

/// Limits the number of rounds, because later rounds may take longer than the measured ones.
constexpr int64_t kMostRounds = 64;

}  // namespace

void StopControl::request(StopReason reason) noexcept {
  if (reason == StopReason::stop_request) is_requested_by_user_.store(true);
  int expected = kNone;
  reason_.compare_exchange_strong(expected, static_cast<int>(reason));
}

void StopControl::request(StopReason reason, std::string message) {
  const std::lock_guard lock(mutex_);
  if (reason == StopReason::stop_request) is_requested_by_user_.store(true);
  int expected = kNone;
  if (reason_.compare_exchange_strong(expected, static_cast<int>(reason))) {
    message_ = std::move(message);
  }
}

void StopControl::attach(std::shared_ptr<const ProcessGroup> group) {
  agreement_.reset();
  has_begun_ = false;
  if (group->size() > 1) agreement_.emplace(std::move(group));
}

std::optional<StopReason> StopControl::reason() const {
  if (agreement_) return agreed_.reason;
  const int reason = reason_.load();
  if (reason == kNone) return std::nullopt;
  return static_cast<StopReason>(reason);
}

void StopControl::defer(const StopTraining& stop, bool is_in_window) {
  const auto urgency = is_in_window ? StopUrgency::drops_update : StopUrgency::thrown;
  if (!deferred_ || deferred_.urgency < urgency) {
    deferred_ = {stop.reason(), urgency, stop.what()};
  }
}

StopRequest StopControl::pending() {
  if (deferred_) return deferred_;
  const int reason = reason_.load();
  if (reason == kNone) return {};
  const std::lock_guard lock(mutex_);
  return {static_cast<StopReason>(reason),
          is_requested_by_user_.load() ? StopUrgency::request : StopUrgency::ends_training,
          message_.empty() ? "Stopping training on request" : message_};
}

void StopControl::begin(int64_t num_rounds) {
  if (!agreement_) return;
  agreement_->begin(pending(), num_rounds);
  has_begun_ = true;
}

void StopControl::end() {
  if (!agreement_) return;
  if (!has_begun_) begin();
  has_begun_ = false;
  agreed_ = agreement_->end();
  throw_if_agreed(StopUrgency::drops_update);
}

void StopControl::throw_if_agreed(StopUrgency least) {
  if (!agreement_) agreed_ = pending();
  if (agreed_ && agreed_.urgency >= least) throw StopTraining(*agreed_.reason, agreed_.message);
}

int64_t StopControl::sync(StopUrgency least, int64_t num_rounds) {
  begin(num_rounds);
  end();
  throw_if_agreed(least);
  return agreement_ ? agreement_->num_rounds() : 1;
}

void StopControl::sync_deferred() {
  begin();
  end();
  if (agreement_) throw_if_agreed(StopUrgency::thrown);
}

void RoundAgreement::begin_round(bool is_last) {
  if (num_rounds_left_-- > 0 && !is_last) return;
  int64_t num_rounds = 1;
  if (num_rounds_ > 0) {
    const auto elapsed = std::max<Clock::duration>(Clock::now() - begin_, 1ns);
    // The first rounds may only queue work for a device, so their duration is not representative.
    const int64_t most = std::min(2 * num_rounds_, kMostRounds);
    num_rounds = std::clamp<int64_t>(kAgreementPeriod * num_rounds_ / elapsed, 1, most);
  }
  num_rounds_ = stop_.sync(least_, num_rounds);
  num_rounds_left_ = num_rounds_ - 1;
  begin_ = Clock::now();
}

void StopControl::spend() {
  deferred_ = agreed_ = {};
  const std::lock_guard lock(mutex_);
  if (keeps_requests_ && is_requested()) {
    // The reason of a trial may have come first.
    const auto present = static_cast<StopReason>(reason_.load());
    if (was_requested_before_ || present == StopReason::stop_request) {
      for_next_run_ = {present, StopUrgency::request, message_};
    } else if (is_requested_by_user_.load()) {
      for_next_run_ = {StopReason::stop_request, StopUrgency::request, ""};
    }
  }
  message_.clear();
  is_requested_by_user_.store(false);
  reason_.store(kNone);
}

void StopControl::clear() {
  spend();
  if (const StopRequest kept = std::exchange(for_next_run_, {}))
    request(*kept.reason, kept.message);
}

}  // namespace linkboy
