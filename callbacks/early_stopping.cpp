#include "linkboy/callbacks/early_stopping.hpp"

#include <fmt/format.h>

#include <cmath>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), metric_(options_.watch_metric, options_.greater_is_better) {
  LINKBOY_CHECK(options_.early_stopping_patience >= 1, "early_stopping_patience is ",
                options_.early_stopping_patience, "; it must be at least 1.");
  LINKBOY_CHECK(options_.early_stopping_threshold >= 0.0, "early_stopping_threshold is ",
                options_.early_stopping_threshold, "; it must not be negative.");
}

void EarlyStopping::on_training_run_start(Trainer& trainer) {
  metric_.start_run(trainer, options_.reset_on_train);
  if (!metric_.best()) counter_ = 0;
}

void EarlyStopping::on_training_run_epoch_end(Trainer& trainer) {
  const auto value = metric_.new_value(trainer);
  if (!value) return;
  if (!metric_.best()) {
    if (std::isfinite(*value)) {
      metric_.set_best(*value);
      return;
    }
  } else {
    const double change = std::abs(*value - *metric_.best());
    if (metric_.is_better(*value) && change > options_.early_stopping_threshold) {
      trainer.print(fmt::format("Improvement of {:.6g} observed, resetting counter.", change));
      metric_.set_best(*value);
      counter_ = 0;
      return;
    }
  }
  ++counter_;
  trainer.print("No improvement above threshold observed, incrementing counter.");
  trainer.print(
      fmt::format("Early stopping counter: {}/{}", counter_, options_.early_stopping_patience));
  if (counter_ >= options_.early_stopping_patience) {
    trainer.request_stop(StopReason::early_stop,
                         fmt::format("Stopping training due to no improvement of {} after {} "
                                     "epochs",
                                     metric_.name(), counter_));
  }
}

StateDict EarlyStopping::state_dict() const {
  StateDict state = metric_.state_dict();
  state.set("counter", counter_);
  return state;
}

void EarlyStopping::load_state_dict(const StateDict& state) {
  metric_.load_state_dict(state);
  counter_ = state.get_int("counter");
}

}  // namespace linkboy
