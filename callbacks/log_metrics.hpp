#pragma once

#include <cstdint>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/extend/metric_cursor.hpp"

namespace linkboy {

struct LogMetricsOptions {
  /// Values of other epochs are passed over, but not those that come after the last one. At least
  /// 1.
  int64_t every_n_epochs = 1;
  LINKBOY_FIELDS(every_n_epochs);
};

/// Prints each new value of the run history once: after the training part, after the evaluation
/// and at the end of an epoch. Override `log_metrics` to send them elsewhere.
class LINKBOY_API LogMetrics : public Callback {
 public:
  /// What `make<LogMetrics>({...})` takes.
  using Options = LogMetricsOptions;

  /// @throws Error if an option is out of its range.
  explicit LogMetrics(LogMetricsOptions options = {});

  void on_training_run_start(Trainer& trainer) override { skip_present(trainer); }
  void on_evaluation_run_start(Trainer& trainer) override { skip_present(trainer); }
  void on_train_epoch_end(Trainer& trainer) override { log_new(trainer); }
  void on_eval_epoch_end(Trainer& trainer) override { log_new(trainer); }
  void on_training_run_epoch_end(Trainer& trainer) override;
  void on_evaluation_run_end(Trainer& trainer) override { log_new(trainer); }

 protected:
  /// Names and values, in the order in which they are written.
  using NamedValues = MetricCursor::NamedValues;

  /// @param metrics  Names with their new values, at least one.
  virtual void log_metrics(Trainer& trainer, const NamedValues& metrics);

 private:
  void skip_present(Trainer& trainer);
  void log_new(Trainer& trainer);

  LogMetricsOptions options_;
  MetricCursor new_metrics_;
  bool is_over_ = false;
};

}  // namespace linkboy
