// Reduces the values after epochs without an improvement of the metric. The values are saved,
// because they depend on the metrics of the run.

#include "linkboy/schedulers/reduce_on_plateau_scheduler.hpp"

#include <algorithm>

#include "linkboy/error.hpp"
#include "linkboy/run/run_config.hpp"
#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

using Mode = ReduceOnPlateauSchedulerOptions::Mode;
using ThresholdMode = ReduceOnPlateauSchedulerOptions::ThresholdMode;

ReduceOnPlateauScheduler::ReduceOnPlateauScheduler(torch::optim::Optimizer& optimizer,
                                                   const ReduceOnPlateauSchedulerOptions& options,
                                                   const RunConfig& config)
    : Scheduler(optimizer, options.field),
      options_(options),
      values_(base_values()),
      best_(options.mode == Mode::min ? std::numeric_limits<double>::infinity()
                                      : -std::numeric_limits<double>::infinity()) {
  const OptionReader reader("plateau schedule", config);
  LINKBOY_CHECK_OPTION(options.factor > 0.0 && options.factor < 1.0,
                       "the plateau schedule's factor is ", options.factor,
                       "; it must be above 0 and below 1.");
  reader.not_negative("patience", static_cast<double>(options.patience));
  reader.not_negative("cooldown", static_cast<double>(options.cooldown));
  reader.not_negative("threshold", options.threshold);
  // An improvement must be below best * (1 - threshold). With a threshold of 1 or more, this bound
  // is not positive, or NaN (inf * 0) before the first value.
  LINKBOY_CHECK_OPTION(
      options.mode == Mode::max || options.threshold_mode == ThresholdMode::abs ||
          options.threshold < 1.0,
      "the plateau schedule's threshold is ", options.threshold,
      ", a share of the best value, and no value can be smaller by this share; it must be below 1. "
      "Set threshold_mode to abs to use a difference.");
  reader.not_negative("eps", options.eps);
  reader.not_negative("min_lr", options.min_lr, base_values().size());
}

std::vector<double> ReduceOnPlateauScheduler::values_at(int64_t /*update*/) const {
  return values_;
}

bool ReduceOnPlateauScheduler::include_new_groups() {
  if (!Scheduler::include_new_groups()) return false;
  values_.insert(values_.end(), base_values().begin() + static_cast<std::ptrdiff_t>(values_.size()),
                 base_values().end());
  return true;
}

void ReduceOnPlateauScheduler::run_start(const RunHistory& history) {
  cursor_.take_newest(history, options_.monitor, /*has_metrics=*/false);
}

void ReduceOnPlateauScheduler::epoch_end(int64_t /*num_epochs_done*/, const RunHistory& history,
                                         bool has_metrics) {
  const auto value = cursor_.take_newest(history, options_.monitor, has_metrics);
  if (value) step_metric(*value);
}

bool ReduceOnPlateauScheduler::is_better(double value) const {
  const double sign = options_.mode == Mode::min ? -1.0 : 1.0;
  const double bound = options_.threshold_mode == ThresholdMode::rel
                           ? best_ * (1.0 + sign * options_.threshold)
                           : best_ + sign * options_.threshold;
  return options_.mode == Mode::min ? value < bound : value > bound;
}

void ReduceOnPlateauScheduler::step_metric(double value) {
  if (is_better(value)) {
    best_ = value;
    num_bad_ = 0;
  } else {
    ++num_bad_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    num_bad_ = 0;
  }
  if (num_bad_ > options_.patience) {
    reduce();
    cooldown_left_ = options_.cooldown;
    num_bad_ = 0;
  }
  start();
}

void ReduceOnPlateauScheduler::reduce() {
  for (std::size_t group = 0; group < values_.size(); ++group) {
    const double reduced =
        std::max(values_[group] * options_.factor, options_.min_lr.at(group, "min_lr"));
    if (values_[group] - reduced > options_.eps) values_[group] = reduced;
  }
}

StateDict ReduceOnPlateauScheduler::state_dict() const {
  StateDict state = Scheduler::state_dict();
  state.set("values", values_);
  state.set("best", best_);
  state.set("num_bad", num_bad_);
  state.set("cooldown_left", cooldown_left_);
  state.set("num_read", cursor_.num_taken(options_.monitor));
  return state;
}

void ReduceOnPlateauScheduler::check_state_dict(const StateDict& state) const {
  Scheduler::check_state_dict(state);
  const std::size_t num_saved = state.get_doubles("values").size();
  const std::size_t num_groups =
      state.get_dict("base_values").get_doubles(to_string(field())).size();
  LINKBOY_CHECK(num_saved == num_groups, "the scheduler's state has ", num_saved, " values, but ",
                num_groups, " base values; it is damaged. Use another copy.");
  state.get_double("best");
  state.get_int("num_bad");
  state.get_int("cooldown_left");
  state.get_int("num_read");
}

void ReduceOnPlateauScheduler::load_state_dict(const StateDict& state) {
  check_state_dict(state);
  values_ = state.get_doubles("values");
  best_ = state.get_double("best");
  num_bad_ = state.get_int("num_bad");
  cooldown_left_ = state.get_int("cooldown_left");
  cursor_.set_num_taken(options_.monitor, state.get_int("num_read"));
  Scheduler::load_state_dict(state);
}

}  // namespace linkboy
