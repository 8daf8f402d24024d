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

/// Reads the values of one metric as the epochs bring them.
class LINKBOY_API MetricReader {
 public:
  /// Nothing is read yet.
  explicit MetricReader(std::string name) : name_(std::move(name)) {}

  /// As in the run history.
  const std::string& name() const { return name_; }

  /// Passes over what the history has already.
  void skip(const RunHistory& history);

  /// Returns the newest value, or nothing if there is none since the last call: the epoch was not
  /// evaluated. If the metric has fewer values than at the last call, all of them are new.
  ///
  /// @param has_metrics  Whether the history has all metrics of the epoch; if not, the metric may
  ///        still come.
  /// @throws Error if there never was such a metric though all are there; the message lists those.
  std::optional<double> next(const RunHistory& history, bool has_metrics);

  /// Values read so far; part of the state of who reads.
  int64_t num_read() const { return num_read_; }
  /// For a state that is restored.
  void set_num_read(int64_t num_read) { num_read_ = num_read; }

 private:
  std::string name_;
  int64_t num_read_ = 0;
};

/// Takes each value of a run history once.
class LINKBOY_API NewMetrics {
 public:
  /// Names and values, in the order of the history's names.
  using NamedValues = std::vector<std::pair<std::string, double>>;

  /// What all metrics have got since the last call, in the order of `get_metric_names`. Of a metric
  /// that has fewer values than at the last call all are new: the history was reset. A metric that
  /// was deleted and has as many values again cannot be told from one that has nothing new.
  NamedValues take(const RunHistory& history);

  /// How many values of each metric were taken; part of the state of who takes them.
  StateDict state_dict() const;
  /// @throws Error if it is not such a state.
  void load_state_dict(const StateDict& state);

 private:
  std::map<std::string, int64_t> num_taken_;
};

}  // namespace linkboy
