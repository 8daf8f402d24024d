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

/// Takes each value of a run history once, as the epochs bring them. If a metric has fewer values
/// than were taken, the history was reset, and all of them are new. A metric that was deleted and
/// has as many values again cannot be told from one that has nothing new.
class LINKBOY_API MetricCursor {
 public:
  /// Names and values, in the order of the history's names.
  using NamedValues = std::vector<std::pair<std::string, double>>;

  /// Takes the new values of all metrics, in the order of `get_metric_names`.
  NamedValues take(const RunHistory& history);

  /// Takes the new values of one metric. Returns the newest, or nothing if there is none: the epoch
  /// was not evaluated.
  ///
  /// @param has_metrics  Whether the history has all metrics of the epoch; if not, the metric may
  ///        still come.
  /// @throws Error if there never was such a metric though all are there; the message lists those.
  std::optional<double> take_newest(const RunHistory& history, const std::string& name,
                                    bool has_metrics);

  /// How many values of each metric were taken; part of the state of the owner.
  StateDict state_dict() const;
  /// @throws Error if it is not such a state.
  void load_state_dict(const StateDict& state);

  /// The same for one metric.
  int64_t num_taken(const std::string& name) const;
  /// The same for one metric.
  void set_num_taken(const std::string& name, int64_t num_taken) { num_taken_[name] = num_taken; }

 private:
  std::map<std::string, int64_t> num_taken_;
};

}  // namespace linkboy
