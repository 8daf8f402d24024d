// Lets a custom schedule set the optimizer's learning rates, and reads and checks them afterwards.

#include "linkboy/schedulers/timm_steps_scheduler.hpp"

#include <cstddef>

#include "linkboy/error.hpp"

namespace linkboy {

TimmStepsScheduler::TimmStepsScheduler(torch::optim::Optimizer& optimizer,
                                       const TimmStepsOptions& options, const RunConfig& config)
    : Scheduler(optimizer), monitor_(options.monitor) {
  LINKBOY_CHECK_OPTION(*options.scheduler,
                       "the timm_steps schedule's scheduler is empty; pass a function.");
  steps_ = (*options.scheduler)(optimizer, config);
  LINKBOY_CHECK(steps_ != nullptr,
                "the function that makes the TimmSteps returned null; it must return an object.");
  values_ = get_param_group_field(optimizer, ParamGroupField::lr);
  set_param_group_field(optimizer, ParamGroupField::lr, base_values());
}

/// Reads the values that the schedule has set, and checks them.
void TimmStepsScheduler::take_values() {
  values_ = get_param_group_field(optimizer(), ParamGroupField::lr);
  start();
}

void TimmStepsScheduler::step() {
  include_new_groups();
  set_num_updates(num_updates() + 1);
  steps_->step_update(num_updates(), metric_);
  take_values();
}

void TimmStepsScheduler::epoch_end(int64_t num_epochs_done, const RunHistory& history,
                                   bool has_metrics) {
  include_new_groups();
  std::optional<double> metric;
  if (!monitor_.empty()) metric = cursor_.take_newest(history, monitor_, has_metrics);
  if (metric) metric_ = metric;
  steps_->step(num_epochs_done, metric);
  take_values();
}

void TimmStepsScheduler::run_start(const RunHistory& history) {
  if (!monitor_.empty()) cursor_.take_newest(history, monitor_, /*has_metrics=*/false);
}

std::vector<std::string> TimmStepsScheduler::monitored_metrics() const {
  if (monitor_.empty()) return {};
  return {monitor_};
}

bool TimmStepsScheduler::include_new_groups() {
  if (!Scheduler::include_new_groups()) return false;
  const std::vector<double> now = get_param_group_field(optimizer(), ParamGroupField::lr);
  values_.insert(values_.end(), now.begin() + static_cast<std::ptrdiff_t>(values_.size()),
                 now.end());
  return true;
}

std::vector<double> TimmStepsScheduler::values_at(int64_t update) const {
  LINKBOY_CHECK(update >= 0, "a schedule has no value after ", update,
                " updates; the number must not be negative.");
  return values_;
}

StateDict TimmStepsScheduler::state_dict() const {
  StateDict state = Scheduler::state_dict();
  state.set("values", values_);
  state.set("num_read", cursor_.num_taken(monitor_));
  if (metric_) state.set("metric", *metric_);
  state.set("steps", steps_->state_dict());
  return state;
}

void TimmStepsScheduler::check_state_dict(const StateDict& state) const {
  Scheduler::check_state_dict(state);
  const std::size_t num_saved = state.get_doubles("values").size();
  const std::size_t num_groups =
      state.get_dict("base_values").get_doubles(to_string(field())).size();
  LINKBOY_CHECK(num_saved == num_groups, "the scheduler's state has ", num_saved, " values, but ",
                num_groups, " base values; it is damaged. Use another copy.");
  state.get_int("num_read");
  if (state.contains("metric")) state.get_double("metric");
  state.get_dict("steps");
}

void TimmStepsScheduler::load_state_dict(const StateDict& state) {
  check_state_dict(state);
  steps_->load_state_dict(state.get_dict("steps"));
  values_ = state.get_doubles("values");
  cursor_.set_num_taken(monitor_, state.get_int("num_read"));
  metric_.reset();
  if (state.contains("metric")) metric_ = state.get_double("metric");
  Scheduler::load_state_dict(state);
}

}  // namespace linkboy
