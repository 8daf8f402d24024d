#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct WsdSchedulerOptions {
  /// The curve of a decay. With t from 0 to 1 over the decay and m = min_lr_ratio, the fraction of
  /// the base value is:
  ///
  ///     sqrt      m + (1 - m) (1 - sqrt(t))
  ///     inverse   1 / (t / m + 1 - t)
  ///     linear    m + (1 - m) (1 - t)
  enum class Decay { sqrt, inverse, linear };
  friend LINKBOY_ENUM_NAMES(Decay, sqrt, inverse, linear);

  /// Total number of updates in the schedule. Must be a whole number and at least 1.
  RunExpression num_updates = placeholders::num_updates;
  /// Number of updates of linear warm-up. Must be a whole number and not negative.
  RunExpression warmup_updates = 0;
  /// The value of the first update of the warm-up. Must not be negative.
  double warmup_start_lr = 1e-6;

  /// The curve of each decay.
  Decay decay = Decay::sqrt;
  /// Fraction of each period in which the value decays. Must be above 0 and at most 1. A decay has
  /// at least 2 updates, unless the period has only 1. The first update of a decay uses the base
  /// value.
  double decay_phase_ratio = 0.1;
  /// The value at the end of a decay as a fraction of the base value. Must be in [0, 1]. Must be
  /// positive for `Decay::inverse`.
  double min_lr_ratio = 1e-6;

  /// Number of periods, each with a decay and a checkpoint at its end. Must be at least 1, and
  /// 2^(num_checkpoints - 1) must be at most `num_updates`.
  int64_t num_checkpoints = 1;
  /// If true, the run continues from the checkpoint of another run. `Trainer::load_checkpoint` then
  /// restores only the base values of the saved schedule (see `continued`), and the schedule starts
  /// from its beginning, without warm-up.
  bool is_continuation_from_checkpoint = false;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(num_updates, warmup_updates, warmup_start_lr, decay, decay_phase_ratio,
                 min_lr_ratio, num_checkpoints, is_continuation_from_checkpoint, field);
};

/// Warms up, stays at the base value, then decays. With several checkpoints, the last one is at the
/// end of the schedule, and each earlier one is halfway to the next: with 800 updates, 4
/// checkpoints are at 100, 200, 400 and 800. After each checkpoint except the last, the value
/// returns to the base value.
///
/// Based on pytorch-accelerated's WSDLrScheduler, whose checkpoints missed the end of the run.
class LINKBOY_API WsdScheduler final : public CurveScheduler {
 public:
  /// The options type of the constructor.
  using Options = WsdSchedulerOptions;

  /// A period in updates: [begin, decay_begin) is stable and [decay_begin, end) decays. The
  /// checkpoint is due after `end` updates.
  struct Period {
    /// The first update of the period, counted from 0.
    int64_t begin;
    /// The first update of the decay.
    int64_t decay_begin;
    /// One past the last update of the period.
    int64_t end;
  };

  /// @throws OptionError if an option is out of range, if the warm-up reaches into the first decay,
  ///         or if there are too many checkpoints for the number of updates; Error if an expression
  ///         has no valid value in this run.
  WsdScheduler(torch::optim::Optimizer& optimizer, const WsdSchedulerOptions& options,
               const RunConfig& config);

  double value_at(int64_t update, double base) const override;
  std::vector<Length> lengths() const override;
  StateDict continued(const StateDict& state) const override;

  /// The periods, one per checkpoint, in order.
  const std::vector<Period>& periods() const { return periods_; }
  /// Returns the period of update `update + 1`; after the end, the last period.
  const Period& period_at(int64_t update) const;
  /// Returns the numbers of updates after which to save: the ends of the periods.
  std::vector<int64_t> checkpoint_updates() const;

 private:
  WsdSchedulerOptions options_;
  int64_t warmup_;
  std::vector<Period> periods_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn wsd(WsdSchedulerOptions options = {}) {
  return scheduler_fn<WsdScheduler>(std::move(options));
}

}  // namespace linkboy
