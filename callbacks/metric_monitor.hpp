#pragma once

#include <optional>
#include <string>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"
#include "linkboy/extend/metric_cursor.hpp"

namespace linkboy {

class Trainer;

/// A metric of the run history that a callback watches for improvement, epoch by epoch.
class LINKBOY_API MetricMonitor {
 public:
  /// Nothing is read before `start_run`.
  MetricMonitor(std::string name, bool greater_is_better)
      : name_(std::move(name)), greater_is_better_(greater_is_better) {}

  /// Its name in the run history.
  const std::string& name() const { return name_; }
  /// The best value so far, if there was one.
  const std::optional<double>& best() const { return best_; }
  /// Makes `value` the best so far, better or not.
  void set_best(double value) { best_ = value; }
  /// Forgets all values.
  void forget_best() { best_.reset(); }

  /// Whether `value` is finite and better than the best so far (or the first).
  bool is_better(double value) const;
  /// Whether one finite value is better than another.
  bool is_better(double value, double than) const {
    return greater_is_better_ ? value > than : value < than;
  }

  /// This epoch's value, or nothing if the epoch was not evaluated.
  /// @throws Error if the history has no such metric though the epoch was evaluated.
  std::optional<double> new_value(Trainer& trainer);

  /// Starts a run: forgets the best value if `reset`, and the values that are there already count
  /// as seen. If the run is resumed, the state that was loaded is kept, with the values that its
  /// run had not seen yet.
  /// @return Whether the best value was forgotten.
  bool start_run(Trainer& trainer, bool is_resumed, bool reset);

  /// The best value, and how many values were seen.
  StateDict state_dict() const;
  /// A `start_run` of a resumed run keeps it. @throws Error if `state` is not what `state_dict`
  /// gave.
  void load_state_dict(const StateDict& state);

 private:
  std::string name_;
  MetricCursor cursor_;
  bool greater_is_better_;
  std::optional<double> best_;
};

}  // namespace linkboy
