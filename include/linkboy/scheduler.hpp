#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace torch::optim {
class Optimizer;
}

namespace linkboy {

class RunHistory;
struct RunConfig;

/// The field of a param group that a scheduler sets. `momentum` is beta1 in the Adam family.
enum class ParamGroupField { lr, weight_decay, momentum, beta2 };
LINKBOY_ENUM_NAMES(ParamGroupField, lr, weight_decay, momentum, beta2)

/// "lr", "weight_decay", "momentum" or "beta2".
inline std::string to_string(ParamGroupField field) { return to_text(field); }

/// A field of every param group, in their order.
///
/// @throws Error if the optimizer's options have no such field.
LINKBOY_API std::vector<double> get_param_group_field(const torch::optim::Optimizer& optimizer,
                                                      ParamGroupField field);
/// Sets the field, of each param group from its value in `values`.
/// @throws Error if the optimizer's options have no such field, or there is not one value a group.
LINKBOY_API void set_param_group_field(torch::optim::Optimizer& optimizer, ParamGroupField field,
                                       const std::vector<double>& values);

/// One value for each param group.
struct FieldValues {
  /// What the values are of.
  ParamGroupField field;
  /// One a param group, in the optimizer's order.
  std::vector<double> values;
};

/// Sets fields of the optimizer's param groups, update by update.
///
/// Update k of a run (counted from 1) uses `values_at(k - 1)`: Trainer calls `start` before the
/// first update and `step` after each update that was made. In a hand-written loop, do the same:
///
///     scheduler.start();
///     for (...) { optimizer.step(); scheduler.step(); }
///
/// Making a scheduler changes nothing in the optimizer, which must outlive it. Not thread-safe.
class LINKBOY_API Scheduler {
 public:
  virtual ~Scheduler() = default;

  /// The field that `values_at` is about.
  ParamGroupField field() const { return base_[0].field; }

  /// The value of each param group for update `update + 1`; changes nothing, so a schedule can be
  /// drawn before training.
  /// @param update  Updates made so far, from 0.
  virtual std::vector<double> values_at(int64_t update) const = 0;

  /// The same for what else the schedule sets (momentum, in OneCycle); mostly nothing.
  virtual std::vector<FieldValues> other_values_at(int64_t /*update*/) const { return {}; }

  /// Puts the values for the next update into the optimizer. If the run has no next update (see
  /// `set_num_updates_of_run`) and the curve has no valid value there, the optimizer keeps those of
  /// the last one.
  /// @throws Error as `check_values_at`.
  void start();

  /// Counts one update and puts the values for the next into the optimizer.
  /// @throws Error as `start`.
  virtual void step();

  /// Takes in the param groups that were added to the optimizer since: their values of now become
  /// their base values. `start` and `step` do so, and Trainer before each update.
  /// @return Whether there were any; `start` then sets them.
  virtual bool include_new_groups();

  /// A run that has this history begins. For a part of another schedule: its turn has not come, and
  /// what is in the history now is not for it; may be called at each end of an epoch.
  virtual void run_start(const RunHistory&) {}

  /// An epoch has ended. For schedules that follow a metric or count epochs.
  /// @param num_epochs_done  Epochs of this run that are done, this one included.
  /// @param has_metrics  Whether the history has all of the epoch's metrics: it was evaluated, or
  ///        the run evaluates nothing.
  virtual void epoch_end([[maybe_unused]] int64_t num_epochs_done, const RunHistory&,
                         [[maybe_unused]] bool has_metrics) {}

  /// Checks what `values_at` and `other_values_at` give.
  /// @throws Error if a value is negative or not finite, or a momentum or beta2 is 1 or more; the
  ///         message names the update.
  void check_values_at(int64_t update) const;

  /// Tells the schedule how many updates the run has; Trainer does. No update uses the values after
  /// the last one, so they may be invalid: a line that reaches 0 at the last update goes below it.
  void set_num_updates_of_run(int64_t num_updates) { num_updates_of_run_ = num_updates; }

  /// Puts the base values back where nobody else has changed the optimizer's values since; what a
  /// run does before it replaces the scheduler of the run before.
  void restore_base_values();

  /// Updates counted so far.
  int64_t num_updates() const { return num_updates_; }

  /// The values that the groups had when this scheduler met them.
  const std::vector<double>& base_values() const { return base_[0].values; }
  /// @throws Error if the schedule does not set this field.
  const std::vector<double>& base_values(ParamGroupField field) const;

  /// A number of updates that shapes the schedule, under the name of its option.
  using Length = std::pair<std::string, double>;

  /// Returns all of them. A state is loaded only by a schedule of the same class with the same
  /// lengths.
  virtual std::vector<Length> lengths() const { return {}; }

  /// Returns what `load_state_dict` needs to continue with the exact next value: the class, the
  /// count, the base values and the lengths. All other options are the new scheduler's own.
  virtual StateDict state_dict() const;

  /// Restores the count and sets the optimizer's values.
  /// @throws Error as `check_state_dict`; nothing has changed then.
  virtual void load_state_dict(const StateDict& state);

  /// Finds out whether `load_state_dict` would take `state`.
  /// @throws Error if it is no such state, was saved for another number of groups, or by another
  ///         schedule or for other lengths (a longer run) and that is not allowed.
  virtual void check_state_dict(const StateDict& state) const;

  /// What a run that is not resumed, but loads the checkpoint of another one, gives to
  /// `load_state_dict` in place of that one's state. The state itself, unless the class says
  /// otherwise.
  virtual StateDict continued(const StateDict& state) const { return state; }

  /// Takes states that were saved by another schedule or for other lengths as well: the values
  /// continue from the saved count on the new curve, perhaps with a jump.
  virtual void allow_changed_lengths(bool allow) { allows_changed_lengths_ = allow; }

 protected:
  /// Whether a group with this base value keeps it: a group without weight decay (or momentum)
  /// stays without, whatever absolute values the curve has. Learning rates follow the curve.
  bool stays_zero(double base) const { return base == 0.0 && field() != ParamGroupField::lr; }

  /// The groups' present values become their base values.
  /// @param other_fields  What `other_values_at` sets.
  explicit Scheduler(torch::optim::Optimizer& optimizer,
                     ParamGroupField field = ParamGroupField::lr,
                     const std::vector<ParamGroupField>& other_fields = {});

  /// The update whose values hold now; a schedule that is driven otherwise may say something else
  /// than the count.
  virtual int64_t now() const { return num_updates_; }

  /// For schedules that count otherwise; changes nothing in the optimizer.
  void set_num_updates(int64_t num_updates) { num_updates_ = num_updates; }
  /// The one that the constructor was given.
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }

 private:
  void check_groups() const;
  std::vector<FieldValues> all_values_at(int64_t update) const;

  torch::optim::Optimizer* optimizer_;
  std::vector<FieldValues> base_;  // the main field's first
  int64_t num_updates_ = 0;
  int64_t num_updates_of_run_ = std::numeric_limits<int64_t>::max();
  bool allows_changed_lengths_ = false;
};

/// A schedule in which every group follows the same curve from its own base value. In a field other
/// than the learning rate, a base value of 0 stays 0.
class LINKBOY_API CurveScheduler : public Scheduler {
 public:
  std::vector<double> values_at(int64_t update) const final;

  /// The value after `update` updates of a group whose base value is `base`.
  virtual double value_at(int64_t update, double base) const = 0;

 protected:
  using Scheduler::Scheduler;
};

/// Makes the scheduler of a run once its length is known.
using CreateSchedulerFn =
    std::function<std::unique_ptr<Scheduler>(torch::optim::Optimizer&, const RunConfig&)>;

/// For a scheduler that is made from (optimizer, options, run configuration).
template <class S, class Options>
CreateSchedulerFn scheduler_fn(Options options) {
  return
      [options = std::move(options)](torch::optim::Optimizer& optimizer, const RunConfig& config) {
        return std::make_unique<S>(optimizer, options, config);
      };
}

}  // namespace linkboy
