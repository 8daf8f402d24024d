#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "linkboy/callback.hpp"
#include "linkboy/callbacks/metric_monitor.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

struct EarlyStoppingOptions {
  /// Evaluations without improvement after which the run ends. At least 1.
  int64_t patience = 1;

  /// A change that is not larger than this is no improvement. Not negative.
  double min_delta = 0.01;

  /// Whether `min_delta` is a share of the best value: 0.01 is one per cent.
  bool is_min_delta_relative = false;

  /// Values of the first so many epochs are not looked at. Not negative.
  int64_t warmup_epochs = 0;

  /// A value worse than this ends the run immediately.
  std::optional<double> divergence_bound{};

  /// Whether a NaN or infinite value ends the run immediately; else it is no improvement.
  bool stop_at_non_finite = false;

  /// Name of the metric in the run history.
  std::string monitor = "eval_loss_epoch";
  /// Whether a larger value is an improvement.
  bool greater_is_better = false;
  /// Whether a new run forgets the best value and the count of the run before.
  bool reset_on_train = true;

  LINKBOY_FIELDS(patience, min_delta, is_min_delta_relative, warmup_epochs, divergence_bound,
                 stop_at_non_finite, monitor, greater_is_better, reset_on_train);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"early_stopping_patience", "patience"},
                                              {"early_stopping_threshold", "min_delta"},
                                              {"is_threshold_relative", "is_min_delta_relative"},
                                              {"num_warmup_epochs", "warmup_epochs"},
                                              {"watch_metric", "monitor"}};
};

/// Ends the run (StopReason::early_stop) when the watched metric has not improved for some epochs,
/// or has gone where it cannot come back from. A run that it has ended and that is resumed ends
/// immediately, unless the options (a larger patience) let it continue.
class LINKBOY_API EarlyStopping : public Callback {
 public:
  /// What `make<EarlyStopping>({...})` takes.
  using Options = EarlyStoppingOptions;

  /// @throws Error if an option is out of its range.
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  void on_training_run_start(Trainer& trainer) override;
  /// @throws Error if there is no such metric.
  void on_training_run_epoch_end(Trainer& trainer) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  bool has_failed(Trainer& trainer, double value) const;
  bool is_improvement(Trainer& trainer, double value);
  void stop(Trainer& trainer) const;

  EarlyStoppingOptions options_;
  MetricMonitor metric_;
  int64_t counter_ = 0;
  std::optional<double> failure_;  // the value that has ended the run
};

}  // namespace linkboy
