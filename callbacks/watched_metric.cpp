#include "linkboy/callbacks/watched_metric.hpp"

#include <cmath>

#include "linkboy/trainer.hpp"

namespace linkboy {

bool WatchedMetric::is_better(double value) const {
  if (!std::isfinite(value)) return false;
  if (!best_) return true;
  return greater_is_better_ ? value > *best_ : value < *best_;
}

std::optional<double> WatchedMetric::new_value(Trainer& trainer) {
  const auto& history = trainer.run_history();
  const auto values = history.get_metric_values(name_);
  if (values.size() == num_seen_) {
    // Without evaluation in this epoch there may be nothing yet; else the name must be wrong, and
    // the history says which names there are.
    const bool was_evaluated =
        !trainer.eval_dataloader() || !history.get_metric_values("eval_loss_epoch").empty();
    if (values.empty() && was_evaluated) history.get_latest_metric(name_);
    return std::nullopt;
  }
  num_seen_ = values.size();
  return values.back();
}

void WatchedMetric::start_run(Trainer& trainer, bool reset) {
  if (!std::exchange(was_loaded_, false) && reset) best_.reset();
  num_seen_ = trainer.run_history().get_metric_values(name_).size();
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
