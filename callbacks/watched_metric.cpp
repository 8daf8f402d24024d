#include "linkboy/callbacks/watched_metric.hpp"

#include <cmath>

#include "linkboy/trainer.hpp"

namespace linkboy {

bool WatchedMetric::is_better(double value) const {
  return std::isfinite(value) && (!best_ || is_better(value, *best_));
}

std::optional<double> WatchedMetric::new_value(Trainer& trainer) {
  return reader_.next(trainer.run_history(),
                      trainer.is_epoch_evaluated() || !trainer.eval_dataloader());
}

bool WatchedMetric::start_run(Trainer& trainer, bool is_resumed, bool reset) {
  if (is_resumed) return false;
  reader_.skip(trainer.run_history());
  if (reset) best_.reset();
  return reset;
}

StateDict WatchedMetric::state_dict() const {
  StateDict state;
  state.set("best", best_ ? c10::IValue(*best_) : c10::IValue());
  state.set("num_read", reader_.num_read());
  return state;
}

void WatchedMetric::load_state_dict(const StateDict& state) {
  best_.reset();
  if (!state.at("best").isNone()) best_ = state.get_double("best");
  reader_.set_num_read(state.get_int("num_read"));
}

}  // namespace linkboy
