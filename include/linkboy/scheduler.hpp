#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "linkboy/state_dict.hpp"

namespace torch::optim {
class Optimizer;
}

namespace linkboy {

struct RunConfig;

/// The field of a param group that a scheduler sets.
enum class ParamGroupField { lr, weight_decay, momentum };

/// "lr", "weight_decay" or "momentum".
std::string to_string(ParamGroupField field);

/// Reads or sets a field of every param group. `momentum` is beta1 in the Adam family.
///
/// @throws Error if the optimizer's options have no such field.
std::vector<double> get_param_group_field(const torch::optim::Optimizer& optimizer,
                                          ParamGroupField field);
void set_param_group_field(torch::optim::Optimizer& optimizer, ParamGroupField field,
                           const std::vector<double>& values);

/// Sets a field of the optimizer's param groups, update by update.
///
/// Update k of a run (counted from 1) uses `values_at(k - 1)`: Trainer calls `start` before the
/// first update and `step` after each update that was made. The optimizer must outlive the
/// scheduler. Not thread-safe.
class Scheduler {
 public:
  virtual ~Scheduler() = default;

  /// The value of each param group for update `update + 1`; pure, so a schedule can be drawn
  /// before training.
  /// @param update  Updates made so far, from 0.
  virtual std::vector<double> values_at(int64_t update) const = 0;

  /// Puts the values for the next update into the optimizer.
  /// @throws Error if a value is negative or not finite; the message names the update.
  void start();

  /// Counts one update and puts the values for the next into the optimizer.
  /// @throws Error as `start`.
  virtual void step();

  /// Puts the base values back, unless somebody else has changed the optimizer's values since;
  /// what a run does before it replaces the scheduler of the run before.
  void restore_base_values();

  /// Updates counted so far.
  int64_t num_updates() const { return num_updates_; }

  /// What `load_state_dict` needs to continue with the exact next value.
  virtual StateDict state_dict() const;

  /// Restores the count and sets the optimizer's values.
  /// @throws Error if `state` is not such a state or was saved for another number of groups.
  virtual void load_state_dict(const StateDict& state);

 protected:
  /// The groups' present values become `base_values()`.
  explicit Scheduler(torch::optim::Optimizer& optimizer,
                     ParamGroupField field = ParamGroupField::lr);

  const std::vector<double>& base_values() const { return base_values_; }
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }

 private:
  torch::optim::Optimizer* optimizer_;
  ParamGroupField field_;
  std::vector<double> base_values_;
  int64_t num_updates_ = 0;
};

/// Makes the scheduler of a run once its length is known.
using CreateSchedulerFn =
    std::function<std::unique_ptr<Scheduler>(torch::optim::Optimizer&, const RunConfig&)>;

}  // namespace linkboy
