#include "stop_control.hpp"

namespace linkboy {

void StopControl::request(StopReason reason) noexcept {
  int expected = kNone;
  reason_.compare_exchange_strong(expected, static_cast<int>(reason));
}

void StopControl::request(StopReason reason, std::string message) {
  const std::lock_guard lock(mutex_);
  int expected = kNone;
  if (reason_.compare_exchange_strong(expected, static_cast<int>(reason))) {
    message_ = std::move(message);
  }
}

void StopControl::share_with(std::shared_ptr<const ProcessGroup> group) {
  agreement_.reset();
  if (group->size() > 1) agreement_.emplace(std::move(group));
}

std::optional<StopReason> StopControl::reason() const {
  if (agreement_) return agreed_.reason;
  const int reason = reason_.load();
  if (reason == kNone) return std::nullopt;
  return static_cast<StopReason>(reason);
}

void StopControl::hold_back(const StopTraining& stop, bool is_in_window) {
  const auto urgency = is_in_window ? StopUrgency::drops_update : StopUrgency::thrown;
  if (!held_back_ || held_back_.urgency < urgency) {
    held_back_ = {stop.reason(), urgency, stop.what()};
  }
}

StopWish StopControl::wish() {
  if (held_back_) return held_back_;
  const int reason = reason_.load();
  if (reason == kNone) return {};
  const std::lock_guard lock(mutex_);
  return {static_cast<StopReason>(reason), StopUrgency::request,
          message_.empty() ? "Stopping training on request" : message_};
}

void StopControl::begin() {
  if (agreement_) agreement_->begin(wish());
}

void StopControl::end() {
  if (!agreement_) return;
  agreed_ = agreement_->end();
  throw_if_agreed(StopUrgency::drops_update);
}

void StopControl::throw_if_agreed(StopUrgency least) {
  if (!agreement_) agreed_ = wish();
  if (agreed_ && agreed_.urgency >= least) throw StopTraining(*agreed_.reason, agreed_.message);
}

void StopControl::agree() {
  begin();
  end();
  throw_if_agreed();
}

void StopControl::follow() {
  begin();
  end();
  if (agreement_) throw_if_agreed(StopUrgency::thrown);
}

void StopControl::clear() {
  const std::lock_guard lock(mutex_);
  message_.clear();
  reason_.store(kNone);
  held_back_ = agreed_ = {};
}

}  // namespace linkboy
