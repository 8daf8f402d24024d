#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/extend/metric_cursor.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

/// Base class of a custom schedule with the methods of timm's schedulers. It sets the optimizer's
/// learning rates itself with `set_param_group_field`, in its constructor and whenever it is
/// stepped.
///
/// If the schedule is a function of the update, a CurveScheduler is simpler and can be plotted.
class LINKBOY_API TimmSteps {
 public:
  virtual ~TimmSteps() = default;

  /// Called after each epoch.
  /// @param epoch  Number of completed epochs of the run, as in timm's `step(epoch + 1)`.
  /// @param metric  The value of `TimmStepsOptions::monitor` in this epoch; empty if there is no
  ///        new value.
  virtual void step([[maybe_unused]] int64_t epoch, [[maybe_unused]] std::optional<double> metric) {
  }

  /// Called after each update that was not skipped.
  /// @param num_updates  Number of updates of the run so far.
  /// @param metric  The most recent value of `TimmStepsOptions::monitor`; empty before the first
  ///        value.
  virtual void step_update([[maybe_unused]] int64_t num_updates,
                           [[maybe_unused]] std::optional<double> metric) {}

  /// Returns the state that a resumed run needs in addition to the learning rates, which are always
  /// saved.
  virtual StateDict state_dict() const { return {}; }
  /// Restores the state that `state_dict` returned.
  virtual void load_state_dict(const StateDict&) {}
};

/// Creates the schedule of a run. The schedule must keep a reference to the optimizer, whose
/// learning rates it sets. The function can resolve placeholders with the configuration.
using CreateTimmStepsFn =
    std::function<std::unique_ptr<TimmSteps>(torch::optim::Optimizer&, const RunConfig&)>;

struct TimmStepsOptions {
  /// Creates the schedule.
  Required<CreateTimmStepsFn> scheduler;
  /// Name in the run history of the metric that the methods receive. If empty, they do not receive
  /// a metric.
  std::string monitor{};
};

/// Turns a custom class in timm's style into a Scheduler:
///
///     create_scheduler_fn = timm_steps(
///         {.scheduler = [](torch::optim::Optimizer& optimizer, const RunConfig& run) {
///           return std::make_unique<MySchedule>(optimizer, run.num_epochs);
///         }})
///
/// Trainer and Engine step it; Engine does not pass it a metric. Future values are unknown, so
/// `values_at` returns the current values for every update. It cannot be a part of another
/// schedule.
class LINKBOY_API TimmStepsScheduler final : public Scheduler {
 public:
  /// The options type of the constructor.
  using Options = TimmStepsOptions;

  /// Does not change the optimizer. The learning rates that the schedule's constructor sets take
  /// effect in `start`.
  /// @throws OptionError if the function is empty; Error if it returns null; any error of the
  ///         function.
  TimmStepsScheduler(torch::optim::Optimizer& optimizer, const TimmStepsOptions& options,
                     const RunConfig& config);

  /// Counts one update and calls `TimmSteps::step_update`.
  /// @throws Error under the same conditions as `Scheduler::start`; any error of the schedule.
  void step() override;
  /// Calls `TimmSteps::step`.
  /// @throws Error under the same conditions as `Scheduler::start`, or if the epoch was evaluated
  ///         but the history does not have the metric; any error of the schedule.
  void epoch_end(int64_t num_epochs_done, const RunHistory& history, bool has_metrics) override;
  void run_start(const RunHistory& history) override;
  std::vector<std::string> monitored_metrics() const override;
  bool include_new_groups() override;

  std::vector<double> values_at(int64_t update) const override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void check_state_dict(const StateDict& state) const override;

  /// The schedule that the function created.
  /// @{
  TimmSteps& steps() { return *steps_; }
  const TimmSteps& steps() const { return *steps_; }
  /// @}

 private:
  void take_values();

  std::string monitor_;
  MetricCursor cursor_{};
  std::optional<double> metric_{};
  std::unique_ptr<TimmSteps> steps_{};
  std::vector<double> values_{};  // set by the schedule
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn timm_steps(TimmStepsOptions options) {
  return scheduler_fn<TimmStepsScheduler>(std::move(options));
}

}  // namespace linkboy
