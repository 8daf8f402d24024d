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

void LogMetrics::skip_present(Trainer& trainer) { new_metrics_.take(trainer.run_history()); }

void LogMetrics::log_new(Trainer& trainer) {
  const NamedValues fresh = new_metrics_.take(trainer.run_history());
  const bool is_due = trainer.run_history().current_epoch() % options_.every_n_epochs == 0 ||
                      !trainer.train_dataloader();  // an evaluation alone
  if (is_due && !fresh.empty()) log_metrics(trainer, fresh);
}

}  // namespace linkboy
