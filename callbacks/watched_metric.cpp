#include "linkboy/callbacks/watched_metric.hpp"

#include <cmath>

#include "linkboy/trainer.hpp"

namespace linkboy {

bool WatchedMetric::is_better(double value) const {
  return std::isfinite(value) && (!best_ || is_better(value, *best_));
}

std::optional<double> WatchedMetric::new_value(Trainer& trainer) {
  return reader_.next(trainer.run_history(), trainer.eval_dataloader() != nullptr);
}

void WatchedMetric::start_run(Trainer& trainer, bool reset) {
  if (!std::exchange(was_loaded_, false) && reset) best_.reset();
  reader_.skip(trainer.run_history());
}

StateDict WatchedMetric::state_dict() const {
  StateDict state;
  state.set("best", best_ ? c10::IValue(*best_) : c10::IValue());
  return state;
}

void WatchedMetric::load_state_dict(const StateDict& state) {
  best_.reset();
  if (!state.at("best").isNone()) best_ = state.get_double("best");
  was_loaded_ = true;
}

}  // namespace linkboy
