#include "linkboy/metric_reader.hpp"

#include <algorithm>

#include "linkboy/run_history.hpp"

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

}  // namespace linkboy
