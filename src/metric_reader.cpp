#include "linkboy/metric_reader.hpp"

#include <algorithm>

#include "linkboy/run_history.hpp"
#include "linkboy/state_dict.hpp"

namespace linkboy {

void MetricReader::skip(const RunHistory& history) {
  num_read_ = static_cast<int64_t>(history.get_metric_values(name_).size());
}

std::optional<double> MetricReader::next(const RunHistory& history, bool has_eval_data) {
  const auto values = history.get_metric_values(name_);
  if (static_cast<int64_t>(values.size()) == num_read_) {
    // Before the first evaluation there may be nothing yet; else the name must be wrong, and the
    // history says which names there are.
    const auto names = history.get_metric_names();
    const bool was_evaluated =
        !has_eval_data || std::any_of(names.begin(), names.end(), [](const std::string& name) {
          return name.ends_with("eval_loss_epoch") && !name.starts_with("initial_");
        });
    if (values.empty() && was_evaluated) history.get_latest_metric(name_);
    return std::nullopt;
  }
  num_read_ = static_cast<int64_t>(values.size());
  return values.back();
}

NewMetrics::NamedValues NewMetrics::take(const RunHistory& history) {
  NamedValues fresh;
  std::map<std::string, int64_t> num_present;
  for (const auto& name : history.get_metric_names()) {
    const auto values = history.get_metric_values(name);
    const auto num_values = static_cast<int64_t>(values.size());
    const int64_t num_taken = num_taken_[name];
    const auto first = values.begin() + (num_taken <= num_values ? num_taken : 0);
    for (auto value = first; value != values.end(); ++value) fresh.emplace_back(name, *value);
    num_present[name] = num_values;
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
