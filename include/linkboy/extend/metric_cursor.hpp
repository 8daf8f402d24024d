#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/export.hpp"

namespace linkboy {

class RunHistory;
class StateDict;

/// Reads each value of a run history once, while the run adds values. If a metric has fewer values
/// than the cursor has read, the cursor concludes that the history was reset and treats all its
/// values as new. If a metric was deleted and has received as many values since, the cursor cannot
/// detect this and does not find new values.
class LINKBOY_API MetricCursor {
 public:
  /// Names and values, in the order of the history's names.
  using NamedValues = std::vector<std::pair<std::string, double>>;

  /// Returns the new values of all metrics, in the order of `get_metric_names`.
  NamedValues take(const RunHistory& history);

  /// Reads the new values of one metric and returns the newest. Returns nullopt if there is no new
  /// value, for example because the epoch was not evaluated.
  ///
  /// @param has_metrics  Whether the history already has all metrics of the epoch. If false, the
  ///        metric may still be added.
  /// @throws Error that lists the metrics if `has_metrics` is true and the history never had this
  ///         metric.
  std::optional<double> take_newest(const RunHistory& history, const std::string& name,
                                    bool has_metrics);

  /// Returns the number of values read from each metric. The cursor's owner saves it in its own
  /// state.
  StateDict state_dict() const;
  /// Restores a state that `state_dict` returned.
  /// @throws Error if an entry is not an integer.
  void load_state_dict(const StateDict& state);

  /// Returns the number of values read from one metric.
  int64_t num_taken(const std::string& name) const;
  /// Sets the number of values read from one metric.
  void set_num_taken(const std::string& name, int64_t num_taken) { num_taken_[name] = num_taken; }

 private:
  std::map<std::string, int64_t> num_taken_;
};

}  // namespace linkboy
