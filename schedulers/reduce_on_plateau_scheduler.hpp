#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/extend/metric_cursor.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/schedulers/per_group.hpp"

namespace linkboy {

struct ReduceOnPlateauSchedulerOptions {
  /// Whether a smaller (`min`) or a larger (`max`) value is better.
  enum class Mode { min, max };
  friend LINKBOY_ENUM_NAMES(Mode, min, max);
  /// Whether `threshold` is a fraction of the best value (`rel`) or a difference (`abs`).
  enum class ThresholdMode { rel, abs };
  friend LINKBOY_ENUM_NAMES(ThresholdMode, rel, abs);

  /// Name of the monitored metric in the run history. It must be recorded before the epoch ends.
  std::string monitor = "eval_loss_epoch";
  /// Whether a smaller (`min`) or a larger (`max`) value is better.
  Mode mode = Mode::min;
  /// Factor of each reduction. Must be above 0 and below 1.
  double factor = 0.1;
  /// Number of successive values without improvement that are tolerated; the next one causes a
  /// reduction. Must not be negative.
  int64_t patience = 10;
  /// The amount by which a value must beat the best value to count as an improvement. Must not be
  /// negative. Must be below 1 if it is a fraction and smaller values are better.
  double threshold = 1e-4;
  /// Whether `threshold` is a fraction of the best value (`rel`) or a difference (`abs`).
  ThresholdMode threshold_mode = ThresholdMode::rel;
  /// Number of values after a reduction that do not count towards `patience`. Must not be negative.
  int64_t cooldown = 0;
  /// Lower bound for reduced values. Must not be negative.
  PerGroup min_lr = 0.0;
  /// A reduction by this amount or less is skipped. Must not be negative.
  double eps = 1e-8;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(monitor, mode, factor, patience, threshold, threshold_mode, cooldown, min_lr, eps,
                 field);
};

/// Multiplies the values by `factor` when the monitored metric stops improving. Equivalent to
/// PyTorch's ReduceLROnPlateau.
///
/// Trainer passes it the metric at the end of each epoch that has a new value. In your own loop,
/// call `step_metric`. Future metrics are unknown, so `values_at` returns the current values for
/// every update.
class LINKBOY_API ReduceOnPlateauScheduler final : public Scheduler {
 public:
  /// The options type of the constructor.
  using Options = ReduceOnPlateauSchedulerOptions;

  /// @throws OptionError if an option is out of range, or if `min_lr` has a wrong number of values.
  ReduceOnPlateauScheduler(torch::optim::Optimizer& optimizer,
                           const ReduceOnPlateauSchedulerOptions& options, const RunConfig& config);

  std::vector<double> values_at(int64_t update) const override;
  bool include_new_groups() override;
  void run_start(const RunHistory& history) override;
  /// @throws Error if the epoch was evaluated but the history does not have the metric.
  void epoch_end(int64_t num_epochs_done, const RunHistory& history, bool has_metrics) override;
  std::vector<std::string> monitored_metrics() const override { return {options_.monitor}; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void check_state_dict(const StateDict& state) const override;

  /// Processes a new value of the metric and sets the optimizer's values. NaN does not count as an
  /// improvement.
  void step_metric(double value);

 private:
  bool is_better(double value) const;
  void reduce();

  ReduceOnPlateauSchedulerOptions options_;
  MetricCursor cursor_;
  std::vector<double> values_;
  double best_;
  int64_t num_bad_ = 0;
  int64_t cooldown_left_ = 0;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn reduce_on_plateau(ReduceOnPlateauSchedulerOptions options = {}) {
  return scheduler_fn<ReduceOnPlateauScheduler>(std::move(options));
}

}  // namespace linkboy
