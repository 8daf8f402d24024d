#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

namespace linkboy {

class RunHistory;
struct RunConfig;

/// The field of a param group that a scheduler sets. `momentum` is beta1 in the Adam family.
enum class ParamGroupField { lr, weight_decay, momentum, beta2 };
LINKBOY_ENUM_NAMES(ParamGroupField, lr, weight_decay, momentum, beta2)

/// Returns "lr", "weight_decay", "momentum" or "beta2".
inline std::string to_string(ParamGroupField field) { return to_text(field); }

/// Returns the value of a field for every param group, in the optimizer's order.
///
/// @throws Error if the optimizer's options do not have this field.
LINKBOY_API std::vector<double> get_param_group_field(const torch::optim::Optimizer& optimizer,
                                                      ParamGroupField field);
/// Sets a field of each param group to the corresponding element of `values`.
/// @throws Error if the optimizer's options do not have this field, or if the number of values
///         differs from the number of param groups.
LINKBOY_API void set_param_group_field(torch::optim::Optimizer& optimizer, ParamGroupField field,
                                       const std::vector<double>& values);
/// Sets a field of the options of one param group.
/// @throws Error if the options do not have this field.
LINKBOY_API void set_param_group_field(torch::optim::OptimizerOptions& options,
                                       ParamGroupField field, double value);

/// One value for each param group.
struct FieldValues {
  /// The field that has these values.
  ParamGroupField field;
  /// One value per param group, in the optimizer's order.
  std::vector<double> values;
};

/// Sets fields of the optimizer's param groups, update by update.
///
/// Update k of a run (counted from 1) uses `values_at(k - 1)`: Trainer calls `start` before the
/// first update and `step` after each update that was not skipped. Do the same in a hand-written
/// loop:
///
///     scheduler.start();
///     for (...) { optimizer.step(); scheduler.step(); }
///
/// Constructing a scheduler does not change the optimizer, which must outlive it. Not thread-safe.
class LINKBOY_API Scheduler {
 public:
  virtual ~Scheduler() = default;

  /// The field whose values `values_at` returns.
  ParamGroupField field() const { return base_[0].field; }

  /// Returns the value of each param group for update `update + 1`. Does not change anything, so
  /// you can plot a schedule before training.
  /// @param update  Number of updates so far; 0 or more.
  virtual std::vector<double> values_at(int64_t update) const = 0;

  /// Returns the values of the other fields that the schedule sets (for example the momentum in
  /// OneCycle); empty for most schedules.
  virtual std::vector<FieldValues> other_values_at(int64_t /*update*/) const { return {}; }

  /// Sets the optimizer's values for the next update. If the run has no further update (see
  /// `set_num_updates_of_run`) and the curve does not have a valid value there, the optimizer keeps
  /// the values of the last update.
  /// @throws Error under the same conditions as `check_values_at`; if param groups were removed
  ///         from the optimizer.
  void start();

  /// Counts one update and sets the optimizer's values for the next one.
  /// @throws Error under the same conditions as `start`.
  virtual void step();

  /// Includes param groups that were added to the optimizer: their current values become their base
  /// values. `start` and `step` call it, and Trainer calls it before each update.
  /// @return Whether there were new groups; call `start` to set their values.
  virtual bool include_new_groups();

  /// Called when a run with this history begins. If the schedule is a part of another one, it may
  /// also be called at the end of each epoch before the schedule becomes active. The schedule must
  /// ignore metrics that are already in the history.
  virtual void run_start(const RunHistory&) {}

  /// Called at the end of an epoch, for schedules that follow a metric or count epochs.
  /// @param num_epochs_done  Number of completed epochs in this run, including this one.
  /// @param has_metrics  Whether the history has all metrics of the epoch, because it was evaluated
  ///        or because the run has no evaluations.
  virtual void epoch_end([[maybe_unused]] int64_t num_epochs_done, const RunHistory&,
                         [[maybe_unused]] bool has_metrics) {}

  /// Returns the names of the metrics that determine the schedule. In a run of several processes,
  /// Trainer checks before `epoch_end` that they are the same on all of them.
  virtual std::vector<std::string> monitored_metrics() const { return {}; }

  /// Checks the values that `values_at` and `other_values_at` return.
  /// @throws Error if a value is negative or not finite, or if a momentum or beta2 is 1 or more;
  ///         the message shows the update.
  void check_values_at(int64_t update) const;

  /// Sets the number of updates in the run; Trainer and Engine call it. No update uses the values
  /// after the last one, so these may be invalid: for example, a line that reaches 0 at the last
  /// update is negative after it.
  void set_num_updates_of_run(int64_t num_updates) { num_updates_of_run_ = num_updates; }

  /// Returns the values that the scheduler has set most recently, for each field.
  std::vector<FieldValues> last_values() const;

  /// Number of updates counted so far.
  int64_t num_updates() const { return num_updates_; }

  /// The values that the groups had when they were added to this scheduler.
  const std::vector<double>& base_values() const { return base_[0].values; }
  /// Returns the base values of another field.
  /// @throws Error if the schedule does not set that field.
  const std::vector<double>& base_values(ParamGroupField field) const;

  /// A number of updates that determines the schedule, preceded by the name of its option.
  using Length = std::pair<std::string, double>;

  /// Returns all lengths. By default, a state can be loaded only by a schedule of the same class
  /// with the same lengths (see `allow_changed_lengths`).
  std::vector<Length> lengths() const { return lengths_; }

  /// Returns the state from which `load_state_dict` continues with exactly the next value: the
  /// class, the count, the base values and the lengths. All other options come from the new
  /// scheduler.
  [[nodiscard]] virtual StateDict state_dict() const;

  /// Restores the count and sets the optimizer's values.
  /// @throws Error under the same conditions as `check_state_dict` (nothing has changed in this
  ///         case), or under the same conditions as `start`.
  virtual void load_state_dict(const StateDict& state);

  /// Checks whether `load_state_dict` would accept `state`.
  /// @throws Error if it is not the state of a scheduler, or was saved for a different number of
  ///         groups; unless `allow_changed_lengths(true)` was called, also if it was saved by
  ///         another schedule or with other lengths (such as those of a longer run).
  virtual void check_state_dict(const StateDict& state) const;

  /// Returns the state to load in a run that is not resumed but loads the checkpoint of another
  /// run. The default returns `state` unchanged.
  virtual StateDict continued(const StateDict& state) const { return state; }

  /// Sets whether states of another schedule or with other lengths are accepted. If so, the values
  /// continue from the saved count on the new curve, possibly with a jump.
  virtual void allow_changed_lengths(bool allow) { allows_changed_lengths_ = allow; }

 protected:
  /// Whether the values of a group with this base value stay 0. A group without weight decay (or
  /// momentum) stays without it, even if the curve has absolute values. Learning rates always
  /// follow the curve.
  bool stays_zero(double base) const { return base == 0.0 && field() != ParamGroupField::lr; }

  /// Returns `value_of(group, base)` for each group, and 0 if its value stays 0.
  template <class ValueOf>
  std::vector<double> values_of_groups(ValueOf value_of) const {
    std::vector<double> values = base_values();
    for (std::size_t group = 0; group < values.size(); ++group) {
      if (!stays_zero(values[group])) values[group] = value_of(group, values[group]);
    }
    return values;
  }

  /// Uses the current values of the groups as their base values.
  /// @param other_fields  The fields that `other_values_at` sets.
  explicit Scheduler(torch::optim::Optimizer& optimizer,
                     ParamGroupField field = ParamGroupField::lr,
                     const std::vector<ParamGroupField>& other_fields = {});

  /// Adds a length. Call it in the constructor.
  void add_length(std::string name, double length) {
    lengths_.emplace_back(std::move(name), length);
  }

  /// The update whose values are in effect: `num_updates()`, unless a schedule does not follow the
  /// count.
  virtual int64_t now() const { return num_updates_; }

  /// Sets the count, for schedules that count in another way. Does not change the optimizer.
  void set_num_updates(int64_t num_updates) { num_updates_ = num_updates; }
  /// The optimizer that was passed to the constructor.
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }

 private:
  void check_groups() const;
  std::vector<FieldValues> all_values_at(int64_t update) const;

  torch::optim::Optimizer* optimizer_;
  std::vector<FieldValues> base_;  // the main field comes first
  std::vector<Length> lengths_;
  int64_t num_updates_ = 0;
  int64_t num_updates_of_run_ = std::numeric_limits<int64_t>::max();
  bool allows_changed_lengths_ = false;
};

/// A schedule in which every group follows the same curve from its own base value. In fields other
/// than the learning rate, a base value of 0 stays 0.
class LINKBOY_API CurveScheduler : public Scheduler {
 public:
  std::vector<double> values_at(int64_t update) const final;

  /// Returns the value after `update` updates for a group whose base value is `base`.
  virtual double value_at(int64_t update, double base) const = 0;

 protected:
  using Scheduler::Scheduler;
};

/// Creates the scheduler of a run once its length is known.
using CreateSchedulerFn =
    Made<std::function<std::unique_ptr<Scheduler>(torch::optim::Optimizer&, const RunConfig&)>>;

/// Returns a function that constructs an S from (optimizer, options, run configuration).
template <class S, class Options>
[[nodiscard]] CreateSchedulerFn scheduler_fn(Options options) {
  Recipe recipe = recipe_of<S>(options);
  const auto create = [options = std::move(options)](torch::optim::Optimizer& optimizer,
                                                     const RunConfig& config) {
    return std::make_unique<S>(optimizer, options, config);
  };
  return {create, std::move(recipe)};
}

/// A function that returns a function for `TrainOptions::create_scheduler_fn`, from the options of
/// one schedule: `step_decay({.gamma = 0.5})` after
/// `inline constexpr SchedulerMaker<StepScheduler> step_decay{};`.
template <class S>
struct SchedulerMaker {
  /// Returns a function that constructs an S with these options.
  CreateSchedulerFn operator()(typename S::Options options = {}) const {
    return scheduler_fn<S>(std::move(options));
  }
};

}  // namespace linkboy
