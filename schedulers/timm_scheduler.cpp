// Converts updates to the unit of time of a schedule in timm's style, which may be the epoch.

#include "linkboy/schedulers/timm_scheduler.hpp"

#include "linkboy/error.hpp"
#include "linkboy/run/run_config.hpp"

namespace linkboy {
namespace {

/// Returns the configuration for a schedule whose updates are the epochs of the run.
RunConfig in_epochs(RunConfig config) {
  LINKBOY_CHECK(config.num_epochs > 0 && config.num_updates_per_epoch > 0,
                "the schedule counts in epochs, but the run has ", config.num_epochs, " epochs of ",
                config.num_updates_per_epoch,
                " updates; both must be at least 1. Set them in the RunConfig.");
  config.max_num_updates = config.num_epochs;
  config.num_updates_per_epoch = 1;
  return config;
}

}  // namespace

TimmScheduler::TimmScheduler(torch::optim::Optimizer& optimizer,
                             const TimmSchedulerOptions& options, const RunConfig& config)
    : CompositeScheduler(optimizer, make_parts(optimizer, {options.scheduler},
                                               {options.t_in_epochs ? in_epochs(config) : config})),
      t_in_epochs_(options.t_in_epochs),
      num_updates_per_epoch_(config.num_updates_per_epoch) {}

void TimmScheduler::step(int64_t epoch) {
  LINKBOY_CHECK_OPTION(epoch >= 0, "the timm schedule is stepped to epoch ", epoch,
                       "; the epoch must not be negative.");
  epoch_ = epoch;
  if (t_in_epochs_) start();
}

void TimmScheduler::step_update(int64_t num_updates) {
  LINKBOY_CHECK_OPTION(num_updates >= 0, "the timm schedule is stepped to update ", num_updates,
                       "; the number must not be negative.");
  set_num_updates(num_updates);
  if (!t_in_epochs_ || include_new_groups()) start();
}

void TimmScheduler::epoch_end(int64_t num_epochs_done, const RunHistory& history,
                              bool has_metrics) {
  CompositeScheduler::epoch_end(num_epochs_done, history, has_metrics);
  if (!is_part()) step(num_epochs_done);
}

int64_t TimmScheduler::now() const {
  return t_in_epochs_ ? epoch_ * num_updates_per_epoch_ : num_updates();
}

int64_t TimmScheduler::time_at(int64_t update) const {
  return t_in_epochs_ ? update / num_updates_per_epoch_ : update;
}

std::vector<double> TimmScheduler::values_at(int64_t update) const {
  return part_values(0, time_at(update));
}

std::vector<FieldValues> TimmScheduler::other_values_at(int64_t update) const {
  return other_part_values(0, time_at(update));
}

std::vector<Scheduler::Length> TimmScheduler::lengths() const {
  std::vector<Length> lengths = CompositeScheduler::lengths();
  if (t_in_epochs_) {
    lengths.emplace_back("num_updates_per_epoch", static_cast<double>(num_updates_per_epoch_));
  }
  return lengths;
}

StateDict TimmScheduler::state_dict() const {
  StateDict state = CompositeScheduler::state_dict();
  state.set("epoch", epoch_);
  return state;
}

void TimmScheduler::check_state_dict(const StateDict& state) const {
  CompositeScheduler::check_state_dict(state);
  LINKBOY_CHECK(state.get_int("epoch") >= 0, "the scheduler's state counts ",
                state.get_int("epoch"),
                " epochs; the count must not be negative. Use another state.");
}

void TimmScheduler::load_state_dict(const StateDict& state) {
  check_state_dict(state);
  epoch_ = state.get_int("epoch");
  CompositeScheduler::load_state_dict(state);
}

}  // namespace linkboy
