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
  /// Whether the best value is the smallest or the largest.
  enum class Mode { min, max };
  friend LINKBOY_ENUM_NAMES(Mode, min, max);
  /// Whether `threshold` is a share of the best value or a difference.
  enum class ThresholdMode { rel, abs };
  friend LINKBOY_ENUM_NAMES(ThresholdMode, rel, abs);

  /// What the run history calls it, recorded before the epoch's end.
  std::string monitor = "eval_loss_epoch";
  /// Whether less or more is better.
  Mode mode = Mode::min;
  /// The factor of each reduction; above 0, below 1.
  double factor = 0.1;
  /// Values without improvement that are put up with; not negative.
  int64_t patience = 10;
  /// By how much a value must beat the best: that share of it, or absolutely. Not negative; below 1
  /// if it is a share and less is better.
  double threshold = 1e-4;
  /// See `threshold`.
  ThresholdMode threshold_mode = ThresholdMode::rel;
  /// Values after a reduction that are not counted; not negative.
  int64_t cooldown = 0;
  /// Nothing is reduced below it; not negative.
  PerGroup min_lr = 0.0;
  /// Reductions by no more than this are not made; not negative.
  double eps = 1e-8;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(monitor, mode, factor, patience, threshold, threshold_mode, cooldown, min_lr, eps,
                 field);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"metric", "monitor"}};
};

/// Multiplies by factor when a metric has stopped to improve. PyTorch's ReduceLROnPlateau.
///
/// Trainer feeds it at the end of each epoch that has a new value of the metric; a loop of one's
/// own calls `step_metric`. Since the metrics are not known beforehand, `values_at` gives the
/// present values for every update.
class LINKBOY_API ReduceOnPlateauScheduler final : public Scheduler {
 public:
  /// See the options.
  using Options = ReduceOnPlateauSchedulerOptions;

  /// @throws Error if an option is out of its range.
  ReduceOnPlateauScheduler(torch::optim::Optimizer& optimizer,
                           const ReduceOnPlateauSchedulerOptions& options, const RunConfig& config);

  std::vector<double> values_at(int64_t update) const override;
  bool include_new_groups() override;
  void run_start(const RunHistory& history) override;
  /// @throws Error if the history has no such metric though the epoch was evaluated.
  void epoch_end(int64_t num_epochs_done, const RunHistory& history, bool has_metrics) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void check_state_dict(const StateDict& state) const override;

  /// Takes a value of the metric and sets the optimizer's values. NaN is no improvement.
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
