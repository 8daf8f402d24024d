// The newest and the best value of a metric, for callbacks that react to an improvement.

#include "linkboy/callbacks/metric_monitor.hpp"

#include <cmath>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

bool MetricMonitor::is_better(double value) const {
  return std::isfinite(value) && (!best_ || is_better(value, *best_));
}

std::optional<double> MetricMonitor::new_value(Trainer& trainer) {
  trainer.accelerator().check_same_metric(trainer.run_history(), name_);
  try {
    const Run& run = trainer.run();
    return cursor_.take_newest(trainer.run_history(), name_,
                               run.is_epoch_evaluated() || !run.eval_dataloader());
  } catch (const Error& error) {
    throw Error(c10::str(error.what(),
                         " Set the option `monitor` of EarlyStopping, SaveBestModel "
                         "or ModelEma to one of them. Names with eval_ need evaluation data. A "
                         "callback that records the metric must be called earlier: "
                         "set_phase(Phase::record)."));
  }
}

bool MetricMonitor::start_run(Trainer& trainer, bool is_resumed, bool reset) {
  if (is_resumed) return false;
  cursor_.take_newest(trainer.run_history(), name_, /*has_metrics=*/false);
  if (reset) best_.reset();
  return reset;
}

StateDict MetricMonitor::state_dict() const {
  StateDict state;
  state.set("best", best_ ? c10::IValue(*best_) : c10::IValue());
  state.set("num_read", cursor_.num_taken(name_));
  return state;
}

void MetricMonitor::load_state_dict(const StateDict& state) {
  best_.reset();
  if (!state.at("best").isNone()) best_ = state.get_double("best");
  cursor_.set_num_taken(name_, state.get_int("num_read"));
}

}  // namespace linkboy
