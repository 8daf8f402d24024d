// Schedules whose values follow the run. The values are saved, because they cannot be computed from
// the number of updates.

#include "linkboy/schedulers/reactive.hpp"

#include <algorithm>
#include <cstddef>

#include "linkboy/error.hpp"

namespace linkboy {

ReactiveScheduler::ReactiveScheduler(torch::optim::Optimizer& optimizer, ParamGroupField field,
                                     std::string monitor)
    : Scheduler(optimizer, field), monitor_(std::move(monitor)), values_(base_values()) {}

std::vector<double> ReactiveScheduler::values_at(int64_t update) const {
  LINKBOY_CHECK(update >= 0, "a schedule has no value after ", update,
                " updates; the number must not be negative.");
  return values_;
}

bool ReactiveScheduler::include_new_groups() {
  if (!Scheduler::include_new_groups()) return false;
  values_.insert(values_.end(), base_values().begin() + static_cast<std::ptrdiff_t>(values_.size()),
                 base_values().end());
  return true;
}

void ReactiveScheduler::run_start(const RunHistory& history) {
  if (!monitor_.empty()) cursor_.take_newest(history, monitor_, /*has_metrics=*/false);
}

void ReactiveScheduler::epoch_end(int64_t num_epochs_done, const RunHistory& history,
                                  bool has_metrics) {
  std::optional<double> metric;
  if (!monitor_.empty()) metric = cursor_.take_newest(history, monitor_, has_metrics);
  follow_epoch(num_epochs_done, metric);
}

std::vector<std::string> ReactiveScheduler::monitored_metrics() const {
  if (monitor_.empty()) return {};
  return {monitor_};
}

StateDict ReactiveScheduler::state_dict() const {
  StateDict state = Scheduler::state_dict();
  state.set("values", values_);
  state.set("num_read", cursor_.num_taken(monitor_));
  return state;
}

void ReactiveScheduler::check_state_dict(const StateDict& state) const {
  Scheduler::check_state_dict(state);
  const std::size_t num_saved = state.get_doubles("values").size();
  const std::size_t num_groups =
      state.get_dict("base_values").get_doubles(to_string(field())).size();
  LINKBOY_CHECK(num_saved == num_groups, "the scheduler's state has ", num_saved, " values, but ",
                num_groups, " base values; it is damaged. Use another copy.");
  state.get_int("num_read");
}

void ReactiveScheduler::load_state_dict(const StateDict& state) {
  check_state_dict(state);
  values_ = state.get_doubles("values");
  cursor_.set_num_taken(monitor_, state.get_int("num_read"));
  Scheduler::load_state_dict(state);
}

// ---- Plateau

using Mode = ReduceOnPlateauSchedulerOptions::Mode;
using ThresholdMode = ReduceOnPlateauSchedulerOptions::ThresholdMode;

ReduceOnPlateauScheduler::ReduceOnPlateauScheduler(torch::optim::Optimizer& optimizer,
                                                   const ReduceOnPlateauSchedulerOptions& options,
                                                   const RunConfig& config)
    : ReactiveScheduler(optimizer, options.field, options.monitor),
      options_(options),
      best_(options.mode == Mode::min ? std::numeric_limits<double>::infinity()
                                      : -std::numeric_limits<double>::infinity()) {
  const OptionReader reader("plateau schedule", config);
  LINKBOY_CHECK_OPTION(
      !options.monitor.empty(),
      "the plateau schedule's monitor is empty; name a metric of the run history.");
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

void ReduceOnPlateauScheduler::follow_epoch(int64_t /*num_epochs_done*/,
                                            std::optional<double> metric) {
  if (metric) step_metric(*metric);
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
  for (std::size_t group = 0; group < values().size(); ++group) {
    double& value = values()[group];
    const double reduced = std::max(value * options_.factor, options_.min_lr.at(group, "min_lr"));
    if (value - reduced > options_.eps) value = reduced;
  }
}

StateDict ReduceOnPlateauScheduler::state_dict() const {
  StateDict state = ReactiveScheduler::state_dict();
  state.set("best", best_);
  state.set("num_bad", num_bad_);
  state.set("cooldown_left", cooldown_left_);
  return state;
}

void ReduceOnPlateauScheduler::check_state_dict(const StateDict& state) const {
  ReactiveScheduler::check_state_dict(state);
  state.get_double("best");
  state.get_int("num_bad");
  state.get_int("cooldown_left");
}

void ReduceOnPlateauScheduler::load_state_dict(const StateDict& state) {
  check_state_dict(state);
  best_ = state.get_double("best");
  num_bad_ = state.get_int("num_bad");
  cooldown_left_ = state.get_int("cooldown_left");
  ReactiveScheduler::load_state_dict(state);
}

// ---- Classes in timm's style

TimmStepsScheduler::TimmStepsScheduler(torch::optim::Optimizer& optimizer,
                                       const TimmStepsOptions& options, const RunConfig& config)
    : ReactiveScheduler(optimizer, ParamGroupField::lr, options.monitor) {
  LINKBOY_CHECK_OPTION(*options.scheduler,
                       "the timm_steps schedule's scheduler is empty; pass a function.");
  steps_ = (*options.scheduler)(optimizer, config);
  LINKBOY_CHECK(steps_ != nullptr,
                "the function that makes the TimmSteps returned null; it must return an object.");
  values() = get_param_group_field(optimizer, ParamGroupField::lr);
  set_param_group_field(optimizer, ParamGroupField::lr, base_values());
}

/// Reads the values that the schedule has set, and checks them.
void TimmStepsScheduler::take_values() {
  values() = get_param_group_field(optimizer(), ParamGroupField::lr);
  start();
}

void TimmStepsScheduler::step() {
  include_new_groups();
  set_num_updates(num_updates() + 1);
  steps_->step_update(num_updates(), metric_);
  take_values();
}

void TimmStepsScheduler::follow_epoch(int64_t num_epochs_done, std::optional<double> metric) {
  include_new_groups();
  if (metric) metric_ = metric;
  steps_->step(num_epochs_done, metric);
  take_values();
}

StateDict TimmStepsScheduler::state_dict() const {
  StateDict state = ReactiveScheduler::state_dict();
  if (metric_) state.set("metric", *metric_);
  state.set("steps", steps_->state_dict());
  return state;
}

void TimmStepsScheduler::check_state_dict(const StateDict& state) const {
  ReactiveScheduler::check_state_dict(state);
  if (state.contains("metric")) state.get_double("metric");
  state.get_dict("steps");
}

void TimmStepsScheduler::load_state_dict(const StateDict& state) {
  check_state_dict(state);
  steps_->load_state_dict(state.get_dict("steps"));
  metric_.reset();
  if (state.contains("metric")) metric_ = state.get_double("metric");
  ReactiveScheduler::load_state_dict(state);
}

}  // namespace linkboy
