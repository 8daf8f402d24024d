#pragma once

#include <optional>
#include <string>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"
#include "linkboy/extend/metric_cursor.hpp"

namespace linkboy {

class Trainer;

/// A metric of the run history that a callback monitors for improvement, epoch by epoch.
class LINKBOY_API MetricMonitor {
 public:
  /// Does not read the run history. Call `start_run` before `new_value`.
  MetricMonitor(std::string name, bool greater_is_better)
      : name_(std::move(name)), greater_is_better_(greater_is_better) {}

  /// The name of the metric in the run history.
  const std::string& name() const { return name_; }
  /// The best value so far, if any.
  const std::optional<double>& best() const { return best_; }
  /// Sets the best value to `value`, even if it is not better than the previous one.
  void set_best(double value) { best_ = value; }

  /// Whether `value` is finite and either better than the best value so far or the first one.
  bool is_better(double value) const;
  /// Whether `value` is better than `than`; false if either is NaN.
  bool is_better(double value, double than) const {
    return greater_is_better_ ? value > than : value < than;
  }

  /// Returns the value of this epoch, or nullopt if the epoch was not evaluated.
  /// @throws Error if the history never had this metric although the epoch was evaluated or the run
  ///         does not have evaluation data; DistributedError on all processes if the metric
  ///         differs between them.
  /// @note Collective.
  std::optional<double> new_value(Trainer& trainer);

  /// Starts a run. In a resumed run, keeps the loaded state, so that values that the saved run had
  /// not read count as new. Otherwise marks all existing values as read and, if `reset` is true,
  /// discards the best value.
  /// @return Whether the best value was discarded.
  bool start_run(Trainer& trainer, bool is_resumed, bool reset);

  /// Returns the best value and the number of values that were read.
  StateDict state_dict() const;
  /// Restores a state that `state_dict` returned. `start_run` keeps it in a resumed run.
  /// @throws Error if `state` does not have the entries that `state_dict` returns.
  void load_state_dict(const StateDict& state);

 private:
  std::string name_;
  MetricCursor cursor_;
  bool greater_is_better_;
  std::optional<double> best_;
};

}  // namespace linkboy
