#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/extend/metric_cursor.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/schedulers/option_reader.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

/// Base class of schedules whose values follow the run, for example a metric. It keeps the current
/// values and saves them. Future values are unknown, so `values_at` returns the current values for
/// every update.
class LINKBOY_API ReactiveScheduler : public Scheduler {
 public:
  std::vector<double> values_at(int64_t update) const override;
  bool include_new_groups() override;
  void run_start(const RunHistory& history) override;
  /// @throws Error if the epoch was evaluated but the history does not have the metric; any error
  ///         of the schedule.
  void epoch_end(int64_t num_epochs_done, const RunHistory& history, bool has_metrics) override;
  std::vector<std::string> monitored_metrics() const override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void check_state_dict(const StateDict& state) const override;

 protected:
  /// @param monitor  Name of the metric in the run history. If empty, there is no metric.
  ReactiveScheduler(torch::optim::Optimizer& optimizer, ParamGroupField field, std::string monitor);

  /// Called after each epoch.
  /// @param metric  The new value of the metric; empty if there is none.
  virtual void follow_epoch(int64_t num_epochs_done, std::optional<double> metric) = 0;

  /// The current values.
  std::vector<double>& values() { return values_; }

 private:
  std::string monitor_;
  MetricCursor cursor_{};
  std::vector<double> values_;
};

struct ReduceOnPlateauSchedulerOptions {
  /// Whether a smaller (`min`) or a larger (`max`) value is better.
  enum class Mode { min, max };
  friend LINKBOY_ENUM_NAMES(Mode, min, max);
  /// Whether `threshold` is a fraction of the best value (`rel`) or a difference (`abs`).
  enum class ThresholdMode { rel, abs };
  friend LINKBOY_ENUM_NAMES(ThresholdMode, rel, abs);

  /// Name of the monitored metric in the run history. Must not be empty. The metric must be
  /// recorded before the epoch ends.
  std::string monitor = "eval_loss_epoch";
  /// Whether a smaller (`min`) or a larger (`max`) value is better.
  Mode mode = Mode::min;
  /// Factor of each reduction. Must be above 0 and below 1.
  double factor = 0.1;
  /// Number of successive values without improvement that are tolerated; the next one causes a
  /// reduction. Must not be negative.
  int64_t patience = 10;
  /// The amount by which a value must beat the best value to count as an improvement. Must not be
  /// negative. Must be below 1 if it is a fraction and smaller values are better.
  double threshold = 1e-4;
  /// Whether `threshold` is a fraction of the best value (`rel`) or a difference (`abs`).
  ThresholdMode threshold_mode = ThresholdMode::rel;
  /// Number of values after a reduction that do not count towards `patience`. Must not be negative.
  int64_t cooldown = 0;
  /// Lower bound for reduced values. Must not be negative.
  PerGroup min_lr = 0.0;
  /// A reduction by this amount or less is skipped. Must not be negative.
  double eps = 1e-8;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(monitor, mode, factor, patience, threshold, threshold_mode, cooldown, min_lr, eps,
                 field);
};

/// Multiplies the values by `factor` when the monitored metric stops improving. Equivalent to
/// PyTorch's ReduceLROnPlateau.
///
/// Trainer passes it the metric at the end of each epoch that has a new value. In your own loop,
/// call `step_metric`.
class LINKBOY_API ReduceOnPlateauScheduler final : public ReactiveScheduler {
 public:
  /// The options type of the constructor.
  using Options = ReduceOnPlateauSchedulerOptions;

  /// @throws OptionError if an option is out of range, or if `min_lr` has a wrong number of values.
  ReduceOnPlateauScheduler(torch::optim::Optimizer& optimizer,
                           const ReduceOnPlateauSchedulerOptions& options, const RunConfig& config);

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void check_state_dict(const StateDict& state) const override;

  /// Processes a new value of the metric and sets the optimizer's values. NaN does not count as an
  /// improvement.
  void step_metric(double value);

 protected:
  void follow_epoch(int64_t num_epochs_done, std::optional<double> metric) override;

 private:
  bool is_better(double value) const;
  void reduce();

  ReduceOnPlateauSchedulerOptions options_;
  double best_;
  int64_t num_bad_ = 0;
  int64_t cooldown_left_ = 0;
};
/// Makes a ReduceOnPlateauScheduler.
inline constexpr SchedulerMaker<ReduceOnPlateauScheduler> reduce_on_plateau{};

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
/// Trainer and Engine step it; Engine does not pass it a metric. It cannot be a part of another
/// schedule.
class LINKBOY_API TimmStepsScheduler final : public ReactiveScheduler {
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
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void check_state_dict(const StateDict& state) const override;

  /// The schedule that the function created.
  /// @{
  TimmSteps& steps() { return *steps_; }
  const TimmSteps& steps() const { return *steps_; }
  /// @}

 protected:
  /// Calls `TimmSteps::step`.
  void follow_epoch(int64_t num_epochs_done, std::optional<double> metric) override;

 private:
  void take_values();

  std::optional<double> metric_{};
  std::unique_ptr<TimmSteps> steps_{};
};
/// Makes a TimmStepsScheduler.
inline constexpr SchedulerMaker<TimmStepsScheduler> timm_steps{};

}  // namespace linkboy
