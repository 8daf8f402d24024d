// Counts the evaluations without an improvement, and requests a stop if there are too many or if
// training has diverged.

#include "linkboy/callbacks/early_stopping.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), metric_(options_.monitor, options_.greater_is_better) {
  LINKBOY_CHECK_OPTION(options_.patience >= 1, "EarlyStopping's patience is ", options_.patience,
                       "; it must be at least 1.");
  LINKBOY_CHECK_OPTION(options_.min_delta >= 0.0, "EarlyStopping's min_delta is ",
                       options_.min_delta, "; it must not be negative.");
  LINKBOY_CHECK_OPTION(options_.warmup_epochs >= 0, "EarlyStopping's warmup_epochs is ",
                       options_.warmup_epochs, "; it must not be negative.");
  LINKBOY_CHECK_OPTION(
      !options_.divergence_bound || !std::isnan(*options_.divergence_bound),
      "EarlyStopping's divergence_bound is NaN; it must be a number. To disable it, leave it out.");
}

void EarlyStopping::on_training_run_start(Trainer& trainer) {
  if (metric_.start_run(trainer, is_resumed(), options_.reset_on_train)) counter_ = 0;
  if (!is_resumed()) failure_.reset();
  // If this callback ended the run that is now resumed, the run ends again, unless changed options
  // allow it to continue.
  if (is_resumed() && counter_ >= options_.patience) return stop(trainer);
  if (failure_ && !has_failed(trainer, *failure_)) failure_.reset();
}

void EarlyStopping::on_training_run_epoch_end(Trainer& trainer) {
  const auto value = metric_.new_value(trainer);
  if (!value || trainer.run_history().current_epoch() <= options_.warmup_epochs) return;
  if (has_failed(trainer, *value)) {
    failure_ = value;
    return;
  }
  if (is_improvement(trainer, *value)) {
    metric_.set_best(*value);
    counter_ = 0;
    return;
  }
  ++counter_;
  trainer.print("No improvement above threshold observed, incrementing counter.");
  trainer.print(fmt::format("Early stopping counter: {}/{}", counter_, options_.patience));
  if (counter_ >= options_.patience) stop(trainer);
}

void EarlyStopping::stop(Trainer& trainer) const {
  trainer.request_stop(
      StopReason::early_stop,
      fmt::format("Stopping training because {} has not improved for {} evaluation{}",
                  metric_.name(), counter_, counter_ == 1 ? "" : "s"));
}

bool EarlyStopping::has_failed(Trainer& trainer, double value) const {
  if (options_.stop_at_non_finite && !std::isfinite(value)) {
    trainer.request_stop(StopReason::early_stop,
                         fmt::format("Stopping training because {} is {}", metric_.name(), value));
    return true;
  }
  if (options_.divergence_bound && metric_.is_better(*options_.divergence_bound, value)) {
    trainer.request_stop(StopReason::early_stop,
                         fmt::format("Stopping training because {} is {:.6g}, which is worse than "
                                     "divergence_bound ({:.6g})",
                                     metric_.name(), value, *options_.divergence_bound));
    return true;
  }
  return false;
}

bool EarlyStopping::is_improvement(Trainer& trainer, double value) {
  if (!metric_.is_better(value)) return false;
  if (!metric_.best()) return true;
  const double change = std::abs(value - *metric_.best());
  const double unit = options_.is_min_delta_relative ? std::abs(*metric_.best()) : 1.0;
  if (change <= options_.min_delta * unit) return false;
  trainer.print(fmt::format("Improvement of {:.6g} observed, resetting counter.", change));
  return true;
}

StateDict EarlyStopping::state_dict() const {
  StateDict state = metric_.state_dict();
  state.set("counter", counter_);
  if (failure_) state.set("failure", *failure_);
  return state;
}

void EarlyStopping::load_state_dict(const StateDict& state) {
  metric_.load_state_dict(state);
  counter_ = state.get_int("counter");
  failure_.reset();
  if (state.contains("failure")) failure_ = state.get_double("failure");
}

}  // namespace linkboy
