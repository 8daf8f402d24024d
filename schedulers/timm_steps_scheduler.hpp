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

/// A schedule of your own with the methods of timm's schedulers: it sets the optimizer's learning
/// rates itself, by `set_param_group_field`, in its constructor and whenever it is stepped.
///
/// If the schedule is a function of the update, a CurveScheduler is simpler and can be drawn.
class LINKBOY_API TimmSteps {
 public:
  virtual ~TimmSteps() = default;

  /// Called after each epoch.
  /// @param epoch  Epochs of the run that are done, as timm's `step(epoch + 1)`.
  /// @param metric  The epoch's value of `TimmStepsOptions::monitor`; nothing if it has no value.
  virtual void step([[maybe_unused]] int64_t epoch, [[maybe_unused]] std::optional<double> metric) {
  }

  /// Called after each update that was made.
  /// @param num_updates  Updates of the run that are done.
  /// @param metric  The newest value of `TimmStepsOptions::monitor`; nothing before the first.
  virtual void step_update([[maybe_unused]] int64_t num_updates,
                           [[maybe_unused]] std::optional<double> metric) {}

  /// Returns what a resumed run needs besides the learning rates, which are saved anyway.
  virtual StateDict state_dict() const { return {}; }
  /// Takes what `state_dict` returned.
  virtual void load_state_dict(const StateDict&) {}
};

/// Makes the schedule of a run. It must keep a reference to the optimizer, and may resolve
/// placeholders by the configuration.
using CreateTimmStepsFn =
    std::function<std::unique_ptr<TimmSteps>(torch::optim::Optimizer&, const RunConfig&)>;

struct TimmStepsOptions {
  /// Makes the schedule.
  Required<CreateTimmStepsFn> scheduler;
  /// The metric that its methods get, as the run history calls it; none if it is empty.
  std::string monitor{};
};

/// A class of your own in timm's style as a schedule:
///
///     create_scheduler_fn = timm_steps(
///         {.scheduler = [](torch::optim::Optimizer& optimizer, const RunConfig& run) {
///           return std::make_unique<MySchedule>(optimizer, run.num_epochs);
///         }})
///
/// Trainer and Engine step it; Engine knows no metric. Its values are not known beforehand, so that
/// `values_at` gives the present ones for every update. It cannot be part of another schedule.
class LINKBOY_API TimmStepsScheduler final : public Scheduler {
 public:
  /// See the options.
  using Options = TimmStepsOptions;

  /// Leaves the optimizer as it is; what the schedule's constructor has set is set by `start`.
  /// @throws Error if the function is empty or returns null; what it throws.
  TimmStepsScheduler(torch::optim::Optimizer& optimizer, const TimmStepsOptions& options,
                     const RunConfig& config);

  /// Calls `TimmSteps::step_update` with one update more.
  /// @throws Error as `Scheduler::start`; what the schedule throws.
  void step() override;
  /// Calls `TimmSteps::step`.
  /// @throws Error as `Scheduler::start`, or if the history has no such metric though the epoch was
  ///         evaluated; what the schedule throws.
  void epoch_end(int64_t num_epochs_done, const RunHistory& history, bool has_metrics) override;
  void run_start(const RunHistory& history) override;
  bool include_new_groups() override;

  std::vector<double> values_at(int64_t update) const override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void check_state_dict(const StateDict& state) const override;

  /// The schedule that the function made.
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
  std::vector<double> values_{};  // what the schedule has set
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn timm_steps(TimmStepsOptions options) {
  return scheduler_fn<TimmStepsScheduler>(std::move(options));
}

}  // namespace linkboy
