#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "linkboy/callback.hpp"
#include "linkboy/callbacks/metric_monitor.hpp"
#include "linkboy/export.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

struct EarlyStoppingOptions {
  /// Number of successive evaluations without improvement until the run ends. Must be at least 1.
  int64_t patience = 1;

  /// A better value counts as an improvement only if it differs from the best value by more than
  /// this. Must not be negative.
  double min_delta = 0.01;

  /// If true, `min_delta` is a fraction of the best value: 0.01 means 1%.
  bool is_min_delta_relative = false;

  /// Number of epochs at the start of the run history whose values are ignored. Must not be
  /// negative.
  int64_t warmup_epochs = 0;

  /// A value that is worse than this ends the run immediately. If not set, there is no bound. Must
  /// not be NaN.
  std::optional<double> divergence_bound{};

  /// If true, a NaN or infinite value ends the run immediately. If false, such a value counts as an
  /// evaluation without improvement.
  bool stop_at_non_finite = false;

  /// Name of the monitored metric in the run history.
  std::string monitor = "eval_loss_epoch";
  /// Whether larger values are better.
  bool greater_is_better = false;
  /// If true, a new run discards the best value and the count of the previous run.
  bool reset_on_train = true;

  LINKBOY_FIELDS(patience, min_delta, is_min_delta_relative, warmup_epochs, divergence_bound,
                 stop_at_non_finite, monitor, greater_is_better, reset_on_train);
};

/// Ends the run (StopReason::early_stop) when the monitored metric has not improved for `patience`
/// evaluations, or when training has diverged (`divergence_bound`, `stop_at_non_finite`). If such a
/// run is resumed, it ends again immediately, unless changed options (for example, a larger
/// patience) allow it to continue.
class LINKBOY_API EarlyStopping : public Callback {
 public:
  /// The options type for `make<EarlyStopping>({...})`.
  using Options = EarlyStoppingOptions;

  /// @throws OptionError if an option is out of range.
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  void on_training_run_start(Trainer& trainer) override;
  /// @throws Error that lists the metrics if the monitored metric was never recorded.
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
  std::optional<double> failure_;  // the diverged value that ended the run
};
/// Makes an EarlyStopping.
inline constexpr Maker<EarlyStopping> early_stopping{};

}  // namespace linkboy
