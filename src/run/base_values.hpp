#pragma once

#include <map>
#include <optional>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

/// The base values of an optimizer's param groups, from which a schedule starts. They outlive the
/// schedule, because the next one starts from them, too, not from the last value of the previous
/// one. A value that was changed after a schedule had set it is itself the next base value, so
/// each call forgets the base values of such groups.
class BaseValues {
 public:
  /// Adds the base values of `scheduler`, for the groups of `optimizer` that it has set last.
  void keep(const Scheduler& scheduler, const torch::optim::Optimizer& optimizer);

  /// Sets the base values.
  void set_base(torch::optim::Optimizer& optimizer);
  /// Reverses `set_base`.
  void set_last(torch::optim::Optimizer& optimizer) const { exchange(optimizer, false); }

  /// Adds the base values to the param groups of an optimizer's state: as "initial_lr", which
  /// Python's schedulers start from, and likewise for the other fields.
  void add_to(StateDict& optimizer_state, const torch::optim::Optimizer& optimizer);

  /// Replaces all values by those in the param groups of a state that was loaded into `optimizer`.
  void load(const StateDict& optimizer_state, const torch::optim::Optimizer& optimizer);

 private:
  struct Value {
    double base = 0.0;
    double last = 0.0;
  };

  void drop_changed(const torch::optim::Optimizer& optimizer);
  void exchange(torch::optim::Optimizer& optimizer, bool to_base) const;

  /// One entry per param group.
  std::map<ParamGroupField, std::vector<std::optional<Value>>> values_;
};

}  // namespace linkboy
