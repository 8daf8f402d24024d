#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/callback.hpp"

namespace linkboy {

struct LogMetricsOptions {
  /// Values of other epochs are passed over. At least 1.
  int64_t every_n_epochs = 1;
};

/// Prints each new value of the run history once: after the training part, after the evaluation
/// and at the end of an epoch. Override `log_metrics` to send them elsewhere.
class LogMetrics : public Callback {
 public:
  /// @throws Error if an option is out of its range.
  explicit LogMetrics(LogMetricsOptions options = {});

  void on_training_run_start(Trainer& trainer) override { skip_present(trainer); }
  void on_evaluation_run_start(Trainer& trainer) override { skip_present(trainer); }
  void on_train_epoch_end(Trainer& trainer) override { log_new(trainer); }
  void on_eval_epoch_end(Trainer& trainer) override { log_new(trainer); }
  void on_training_run_epoch_end(Trainer& trainer) override { log_new(trainer); }
  void on_evaluation_run_end(Trainer& trainer) override { log_new(trainer); }

 protected:
  using NamedValues = std::vector<std::pair<std::string, double>>;

  /// @param metrics  Names with their new values, at least one.
  virtual void log_metrics(Trainer& trainer, const NamedValues& metrics);

 private:
  NamedValues take_new(Trainer& trainer);
  void skip_present(Trainer& trainer) { take_new(trainer); }
  void log_new(Trainer& trainer);

  LogMetricsOptions options_;
  std::map<std::string, std::size_t> num_logged_;
};

}  // namespace linkboy
