#include "linkboy/metric_reader.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "linkboy/run_history.hpp"
#include "linkboy/state_dict.hpp"

namespace linkboy {
namespace {

/// Whether an epoch of the run was evaluated at its end; extra evaluations do not count.
bool was_evaluated(const RunHistory& history) {
  constexpr std::string_view kTrainLoss = "train_loss_epoch";
  static constexpr std::array<std::string_view, 4> kExtra{"initial_", "intermediate_", "ema_model_",
                                                          "swa_model_"};
  const auto names = history.get_metric_names();
  // What Trainer::set_metric_name_prefix puts in front of all.
  std::string_view prefix;
  for (const std::string& name : names) {
    if (!name.ends_with(kTrainLoss)) continue;
    prefix = std::string_view(name).substr(0, name.size() - kTrainLoss.size());
    break;
  }
  return std::any_of(names.begin(), names.end(), [prefix](std::string_view name) {
    if (!name.ends_with("eval_loss_epoch")) return false;
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
    return std::none_of(kExtra.begin(), kExtra.end(),
                        [name](std::string_view extra) { return name.starts_with(extra); });
  });
}

}  // namespace

void MetricReader::skip(const RunHistory& history) { num_read_ = history.num_metric_values(name_); }

std::optional<double> MetricReader::next(const RunHistory& history, bool has_eval_data) {
  const int64_t num_values = history.num_metric_values(name_);
  const int64_t num_before = std::exchange(num_read_, num_values);
  // With fewer values than before, the metric was deleted, or the history reset: all are new.
  if (num_values != num_before && num_values > 0) return history.get_latest_metric(name_);
  // Before the first evaluation there may be nothing yet; else the name must be wrong, and the
  // history says which names there are.
  const bool never_came = num_values == 0 && num_before == 0;
  if (never_came && (!has_eval_data || was_evaluated(history))) history.get_latest_metric(name_);
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
