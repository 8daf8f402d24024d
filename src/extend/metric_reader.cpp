#include "linkboy/extend/metric_reader.hpp"

#include <utility>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/run/run_history.hpp"

namespace linkboy {
void MetricReader::skip(const RunHistory& history) { num_read_ = history.num_metric_values(name_); }

std::optional<double> MetricReader::next(const RunHistory& history, bool has_metrics) {
  const int64_t num_values = history.num_metric_values(name_);
  const int64_t num_before = std::exchange(num_read_, num_values);
  // With fewer values than before, the metric was deleted, or the history reset: all are new.
  if (num_values != num_before && num_values > 0) return history.get_latest_metric(name_);
  // Before the first evaluation there may be nothing yet; else the name must be wrong, and the
  // history says which names there are.
  if (num_values == 0 && num_before == 0 && has_metrics) history.get_latest_metric(name_);
  return std::nullopt;
}

NewMetrics::NamedValues NewMetrics::take(const RunHistory& history) {
  NamedValues fresh;
  std::map<std::string, int64_t> num_present;
  for (const auto& name : history.get_metric_names()) {
    const int64_t num_values = history.num_metric_values(name);
    num_present[name] = num_values;
    const int64_t num_taken = num_taken_[name];
    if (num_taken == num_values) continue;
    const auto values = history.get_metric_values(name);
    const auto first = values.begin() + (num_taken < num_values ? num_taken : 0);
    for (auto value = first; value != values.end(); ++value) fresh.emplace_back(name, *value);
  }
  num_taken_ = std::move(num_present);
  return fresh;
}

StateDict NewMetrics::state_dict() const {
  StateDict state;
  for (const auto& [name, count] : num_taken_) state.set(name, count);
  return state;
}

void NewMetrics::load_state_dict(const StateDict& state) {
  num_taken_.clear();
  for (const auto& [name, count] : state.entries()) num_taken_[name] = state.get_int(name);
}

}  // namespace linkboy
