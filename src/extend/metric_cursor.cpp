// Counts the values that were read of each metric, so that each value is read once.

#include "linkboy/extend/metric_cursor.hpp"

#include <utility>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/run/run_history.hpp"

namespace linkboy {

MetricCursor::NamedValues MetricCursor::take(const RunHistory& history) {
  NamedValues fresh;
  std::map<std::string, int64_t> num_present;
  for (const auto& name : history.get_metric_names()) {
    const int64_t num_values = history.num_metric_values(name);
    num_present[name] = num_values;
    const int64_t num_before = num_taken(name);
    if (num_before == num_values) continue;
    const auto values = history.get_metric_values(name);
    const auto first = values.begin() + (num_before < num_values ? num_before : 0);
    for (auto value = first; value != values.end(); ++value) fresh.emplace_back(name, *value);
  }
  num_taken_ = std::move(num_present);
  return fresh;
}

std::optional<double> MetricCursor::take_newest(const RunHistory& history, const std::string& name,
                                                bool has_metrics) {
  const int64_t num_values = history.num_metric_values(name);
  const int64_t num_before = std::exchange(num_taken_[name], num_values);
  if (num_values != num_before && num_values > 0) return history.get_latest_metric(name);
  // Before the first evaluation, the metric may be missing. After it, the name must be wrong, and
  // the history throws an error that lists the names.
  if (num_values == 0 && num_before == 0 && has_metrics) history.get_latest_metric(name);
  return std::nullopt;
}

StateDict MetricCursor::state_dict() const {
  StateDict state;
  for (const auto& [name, count] : num_taken_) state.set(name, count);
  return state;
}

void MetricCursor::load_state_dict(const StateDict& state) {
  num_taken_.clear();
  for (const auto& [name, count] : state.entries()) num_taken_[name] = state.get_int(name);
}

int64_t MetricCursor::num_taken(const std::string& name) const {
  const auto found = num_taken_.find(name);
  return found == num_taken_.end() ? 0 : found->second;
}

}  // namespace linkboy
