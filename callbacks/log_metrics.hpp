#pragma once

#include <cstdint>

#include "linkboy/callback.hpp"
#include "linkboy/export.hpp"
#include "linkboy/extend/metric_cursor.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

struct LogMetricsOptions {
  /// Prints the values of every n-th epoch and skips those of the other epochs. Values from
  /// `Trainer::evaluate`, and values that are recorded after the planned last epoch, are always
  /// printed. Must be at least 1.
  int64_t every_n_epochs = 1;
  LINKBOY_FIELDS(every_n_epochs);
};

/// Prints each new value of the run history once: after the training part, after each evaluation
/// and at the end of each epoch. To send the values elsewhere, override `log_metrics`.
class LINKBOY_API LogMetrics : public Callback {
 public:
  /// The options type for `make<LogMetrics>({...})`.
  using Options = LogMetricsOptions;

  /// @throws OptionError if an option is out of range.
  explicit LogMetrics(LogMetricsOptions options = {});

  void on_training_run_start(Trainer& trainer) override { skip_present(trainer); }
  void on_evaluation_run_start(Trainer& trainer) override { skip_present(trainer); }
  void on_train_epoch_end(Trainer& trainer) override { log_new(trainer); }
  void on_eval_epoch_end(Trainer& trainer) override { log_new(trainer); }
  void on_training_run_epoch_end(Trainer& trainer) override;
  void on_evaluation_run_end(Trainer& trainer) override { log_new(trainer); }

 protected:
  /// Names and values, in the order in which they are printed.
  using NamedValues = MetricCursor::NamedValues;

  /// Prints new values.
  /// @param metrics  Names and new values; at least one.
  virtual void log_metrics(Trainer& trainer, const NamedValues& metrics);

 private:
  void skip_present(Trainer& trainer);
  void log_new(Trainer& trainer);

  LogMetricsOptions options_;
  MetricCursor new_metrics_;
  bool is_over_ = false;
};
/// Makes a LogMetrics.
inline constexpr Maker<LogMetrics> log_metrics{};

}  // namespace linkboy
