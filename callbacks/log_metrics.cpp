// Prints the values that the run history has received since the last print.

#include "linkboy/callbacks/log_metrics.hpp"

#include <fmt/format.h>

#include "linkboy/error.hpp"
#include "linkboy/trainer.hpp"

namespace linkboy {

LogMetrics::LogMetrics(LogMetricsOptions options) : options_(options) {
  LINKBOY_CHECK_OPTION(options_.every_n_epochs >= 1, "LogMetrics' every_n_epochs is ",
                       options_.every_n_epochs, "; it must be at least 1.");
}

void LogMetrics::log_metrics(Trainer& trainer, const NamedValues& metrics) {
  for (const auto& [name, value] : metrics) trainer.print(fmt::format("{}: {:.6g}", name, value));
}

void LogMetrics::skip_present(Trainer& trainer) {
  new_metrics_.take(trainer.run_history());
  is_over_ = false;
}

void LogMetrics::on_training_run_epoch_end(Trainer& trainer) {
  log_new(trainer);
  is_over_ = trainer.run().is_last_epoch();
}

void LogMetrics::log_new(Trainer& trainer) {
  const NamedValues fresh = new_metrics_.take(trainer.run_history());
  // After the run's last epoch and in `Trainer::evaluate`, no later event would print the values.
  const bool is_due = trainer.run_history().current_epoch() % options_.every_n_epochs == 0 ||
                      is_over_ || !trainer.run().train_dataloader();
  if (is_due && !fresh.empty()) log_metrics(trainer, fresh);
}

}  // namespace linkboy
