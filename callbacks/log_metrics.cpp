#include "linkboy/callbacks/log_metrics.hpp"

#include <fmt/format.h>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

LogMetrics::LogMetrics(LogMetricsOptions options) : options_(options) {
  LINKBOY_CHECK(options_.every_n_epochs >= 1, "LogMetrics' every_n_epochs is ",
                options_.every_n_epochs, "; it must be at least 1.");
}

void LogMetrics::log_metrics(Trainer& trainer, const NamedValues& metrics) {
  for (const auto& [name, value] : metrics) trainer.print(fmt::format("{}: {:.6g}", name, value));
}

LogMetrics::NamedValues LogMetrics::take_new(Trainer& trainer) {
  NamedValues fresh;
  std::map<std::string, std::size_t> num_present;
  for (const auto& name : trainer.run_history().get_metric_names()) {
    const auto values = trainer.run_history().get_metric_values(name);
    std::size_t first = num_logged_[name];
    if (first > values.size()) first = 0;  // the history was reset
    for (std::size_t i = first; i < values.size(); ++i) fresh.emplace_back(name, values[i]);
    num_present[name] = values.size();
  }
  num_logged_ = std::move(num_present);
  return fresh;
}

void LogMetrics::log_new(Trainer& trainer) {
  const NamedValues fresh = take_new(trainer);
  const bool is_due = trainer.run_history().current_epoch() % options_.every_n_epochs == 0 ||
                      !trainer.train_dataloader();  // an evaluation alone
  if (is_due && !fresh.empty()) log_metrics(trainer, fresh);
}

}  // namespace linkboy
