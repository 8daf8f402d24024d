#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

/// A schedule that consists of other schedules, its parts. It forwards the calls that the parts
/// need and saves their states. The parts compute values; only the composite writes to the
/// optimizer. A part receives `epoch_end` only during its turn, which is the time in which its
/// values are in use. A plateau schedule therefore does not count metrics from before its turn.
class LINKBOY_API CompositeScheduler : public Scheduler {
 public:
  /// Returns the values of the part whose turn it is.
  std::vector<double> values_at(int64_t update) const override;
  /// Returns the values of the part whose turn it is. Fields that the part does not set have their
  /// base values.
  std::vector<FieldValues> other_values_at(int64_t update) const override;
  bool include_new_groups() override;
  void run_start(const RunHistory& history) override;
  void epoch_end(int64_t num_epochs_done, const RunHistory& history, bool has_metrics) override;
  /// Returns the metrics of all parts.
  std::vector<std::string> monitored_metrics() const override;
  StateDict state_dict() const override;
  void check_state_dict(const StateDict& state) const override;
  void load_state_dict(const StateDict& state) override;
  void allow_changed_lengths(bool allow) override;

  /// The parts, in the order of the options.
  const std::vector<std::unique_ptr<Scheduler>>& parts() const { return parts_; }

 protected:
  /// A list of schedulers. None may be null.
  using Parts = std::vector<std::unique_ptr<Scheduler>>;

  /// A part, and how many updates it has made.
  struct Turn {
    std::size_t part;  ///< Index of the part.
    int64_t update;    ///< Its number of updates.
  };

  /// Sets all fields that any of the parts sets. The main field is that of the first part.
  /// @throws Error if there is no part, or if a part is null or a TimmStepsScheduler.
  CompositeScheduler(torch::optim::Optimizer& optimizer, Parts parts);

  /// Returns the part whose values are in use after `update` updates of the composite.
  virtual Turn turn_at(int64_t update) const { return {0, update}; }

  /// Whether a part receives an `epoch_end` after `update` updates of the composite.
  virtual bool has_turn(std::size_t part, int64_t update) const {
    return part == turn_at(update).part;
  }

  /// The fields that the parts set in addition to the main field.
  const std::vector<ParamGroupField>& other_fields() const { return other_fields_; }

  /// Whether this schedule is a part of another composite that has passed an `epoch_end` to it. If
  /// so, the other composite counts the updates and writes to the optimizer.
  bool is_part() const { return update_as_part_.has_value(); }

 private:
  Parts parts_;
  std::optional<int64_t> update_as_part_;  // at the last `epoch_end` of its turn
  std::vector<ParamGroupField> other_fields_;
};

struct ChainedSchedulerOptions {
  /// The schedulers to combine. Must not be empty.
  Required<std::vector<CreateSchedulerFn>> schedulers;
};

/// Applies several schedules at the same time. Schedules of the same field are multiplied, as in
/// PyTorch's ChainedScheduler:
///
///     f(n) = base * (f_1(n) / base) * (f_2(n) / base) * ...
///
/// If the base value is 0, f(n) is the first of f_1(n), f_2(n), ... that is not 0; only schedules
/// with absolute values, such as OneCycleScheduler with `max_lr`, are then different from 0.
/// Schedules of different fields do not affect each other, so weight decay can follow one curve and
/// the learning rate another.
class LINKBOY_API ChainedScheduler final : public CompositeScheduler {
 public:
  /// The options type of the constructor.
  using Options = ChainedSchedulerOptions;

  /// @throws Error if there is no scheduler or a function is empty or returns null; any error of
  ///         the parts' constructors.
  ChainedScheduler(torch::optim::Optimizer& optimizer, const ChainedSchedulerOptions& options,
                   const RunConfig& config);

  std::vector<double> values_at(int64_t update) const override;
  std::vector<FieldValues> other_values_at(int64_t update) const override;

 protected:
  bool has_turn(std::size_t /*part*/, int64_t /*update*/) const override { return true; }

 private:
  std::vector<double> product_at(int64_t update, ParamGroupField field) const;
};
/// Chains schedules.
inline constexpr SchedulerMaker<ChainedScheduler> chained{};

struct SequentialSchedulerOptions {
  /// The schedulers, in order. Must not be empty. For each scheduler, the placeholders num_updates
  /// and num_epochs are the numbers of updates and epochs in its part of the run (a partial epoch
  /// counts as one). A plateau schedule counts metrics only during its turn.
  Required<std::vector<CreateSchedulerFn>> schedulers;
  /// Numbers of updates after which the next scheduler takes over. There must be one fewer
  /// milestone than schedulers. Must be whole numbers, at least 1, and increasing.
  std::vector<RunExpression> milestones{};
};

/// Runs one schedule after another, each from its own beginning: f(n) = f_i(n - milestone_i) from
/// milestone_i on. Equivalent to PyTorch's SequentialLR.
class LINKBOY_API SequentialScheduler final : public CompositeScheduler {
 public:
  /// The options type of the constructor.
  using Options = SequentialSchedulerOptions;

  /// @throws OptionError if the milestones are less than 1 or do not increase, or if their number
  ///         is wrong; Error if an expression has no valid value in this run, or the parts have
  ///         different main fields; any error of the parts' constructors.
  SequentialScheduler(torch::optim::Optimizer& optimizer, const SequentialSchedulerOptions& options,
                      const RunConfig& config);

 protected:
  Turn turn_at(int64_t update) const override;

 private:
  /// Number of updates before each part; the first is 0.
  std::vector<int64_t> begins_;
};
/// Runs schedules one after another.
inline constexpr SchedulerMaker<SequentialScheduler> sequential{};

struct WarmupSchedulerOptions {
  /// The schedule after the warm-up. If empty, the values stay at the base values. If
  /// `warmup_prefix` is true, this schedule's placeholders num_updates and num_epochs are the
  /// numbers of updates and epochs after the warm-up (a partial epoch counts as one). A plateau
  /// schedule counts metrics from the end of the warm-up on.
  CreateSchedulerFn scheduler{};
  /// Number of updates of linear warm-up. Does not have to be a whole number. Must not be negative,
  /// and must be at most the number of updates in the run.
  RunExpression warmup_updates = placeholders::num_updates_per_epoch;
  /// The value of the first update. Must not be negative.
  double warmup_start_lr = 0.0;
  /// If true, the schedule begins at the end of the warm-up. If false, it begins at the first
  /// update, and its values are used from the end of the warm-up on.
  bool warmup_prefix = true;
};

/// Rises linearly to the value of another schedule g, then follows g. W is warmup_updates, W' is W
/// rounded up, and w is warmup_start_lr. s is W' if `warmup_prefix` is true, otherwise 0:
///
///     f(n) = w + n (g(W' - s) - w) / W   n < W
///            g(n - s)                    otherwise
///
/// Equivalent to the warm-up of timm's schedulers, but without a jump at its end.
class LINKBOY_API WarmupScheduler final : public CompositeScheduler {
 public:
  /// The options type of the constructor.
  using Options = WarmupSchedulerOptions;

  /// @throws OptionError if the warm-up is longer than the run or an option is out of range; Error
  ///         if an expression has no valid value in this run; any error of the other schedule's
  ///         constructor.
  WarmupScheduler(torch::optim::Optimizer& optimizer, const WarmupSchedulerOptions& options,
                  const RunConfig& config);

  std::vector<double> values_at(int64_t update) const override;

 protected:
  /// During the warm-up, the update of the other schedule is the one at its end.
  Turn turn_at(int64_t update) const override;
  bool has_turn(std::size_t /*part*/, int64_t update) const override {
    return static_cast<double>(update) >= warmup_;
  }

 private:
  double warmup_;
  double warmup_start_lr_;
  bool is_prefix_;
};
/// Adds a warm-up to a schedule.
inline constexpr SchedulerMaker<WarmupScheduler> warmup{};

struct TimmSchedulerOptions {
  /// Creates the schedule, which is a function of the time.
  Required<CreateSchedulerFn> scheduler;
  /// If true, the time is counted in epochs: `step(epoch)` advances it, and the schedule's
  /// placeholder num_updates is the number of epochs. If false, the time is counted in updates, and
  /// `step_update(n)` advances it.
  bool t_in_epochs = true;
};

/// Steps any schedule in the style of timm: the caller reports both the completed epochs and the
/// completed updates, and the schedule follows the one that is its unit of time. In your own loop:
///
///     scheduler.start();
///     for each epoch:  for each update:  ... optimizer.step();  scheduler.step_update(++updates);
///                      scheduler.step(++epochs);
///
/// Trainer makes the same calls, so it replaces pytorch-accelerated's TrainerWithTimmScheduler.
/// Both counts are 0 at the start of the run. For a custom class with timm's methods, see
/// TimmSteps.
class LINKBOY_API TimmScheduler final : public CompositeScheduler {
 public:
  /// The options type of the constructor.
  using Options = TimmSchedulerOptions;

  /// @throws Error if the function is empty or returns null, or if the time is counted in epochs
  ///         and the run's number of epochs or of updates per epoch is not known; any error of the
  ///         function.
  TimmScheduler(torch::optim::Optimizer& optimizer, const TimmSchedulerOptions& options,
                const RunConfig& config);

  /// Reports that an epoch is complete.
  /// @param epoch  Number of completed epochs.
  /// @throws OptionError if `epoch` is negative; Error under the same conditions as `start`.
  void step(int64_t epoch);
  /// Reports that an update is complete.
  /// @param num_updates  Number of completed updates.
  /// @throws OptionError if `num_updates` is negative; Error under the same conditions as `start`.
  void step_update(int64_t num_updates);

  /// Calls `step_update` with the next number of updates.
  void step() override { step_update(num_updates() + 1); }
  /// Calls `step` with the number of completed epochs.
  void epoch_end(int64_t num_epochs_done, const RunHistory& history, bool has_metrics) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void check_state_dict(const StateDict& state) const override;

 protected:
  int64_t now() const override;
  Turn turn_at(int64_t update) const override {
    return {0, t_in_epochs_ ? update / num_updates_per_epoch_ : update};
  }

 private:
  bool t_in_epochs_;
  int64_t num_updates_per_epoch_;
  int64_t epoch_ = 0;
};
/// Steps a schedule in the style of timm.
inline constexpr SchedulerMaker<TimmScheduler> timm_schedule{};

/// Steps any schedule once per epoch, like a Python loop that calls `scheduler.step()` at the end
/// of each epoch. For the schedule, an epoch is one update: its lengths count epochs, num_updates
/// is the number of epochs, and num_updates_per_epoch is 1. The equivalent of
/// CosineAnnealingLR(T_max=epochs) is:
///
///     create_scheduler_fn = by_epoch(cosine({.min_lr = 0.0}))
///
/// A plateau schedule follows its metric at the end of each epoch, with or without `by_epoch`.
inline CreateSchedulerFn by_epoch(const CreateSchedulerFn& scheduler) {
  Recipe recipe = scheduler;
  const std::pair<std::string, std::string> option("by_epoch", "true");
  const auto& options = recipe.options;
  if (std::find(options.begin(), options.end(), option) == options.end()) {
    recipe.options.push_back(option);
  }
  return {timm_schedule({.scheduler = scheduler, .t_in_epochs = true}), std::move(recipe)};
}

}  // namespace linkboy
