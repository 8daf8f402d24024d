#pragma once

#include <cstdint>
#include <optional>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

/// Options of CosineRestartsScheduler. Set `first_cycle_updates` or `num_cycles`, but not both. If
/// neither is set, one cycle spans the run.
struct CosineRestartsSchedulerOptions {
  /// Number of updates in the first cycle. Must be positive.
  std::optional<RunExpression> first_cycle_updates{};
  /// Number of cycles that together fill the run. Must be at least 1.
  std::optional<int64_t> num_cycles{};

  /// Length of each cycle relative to the previous cycle. Must be at least 1.
  double cycle_mult = 1.0;
  /// Peak of each cycle relative to the previous cycle. Must be positive.
  double cycle_decay = 1.0;
  /// Number of cycles after which the value stays at `min_lr`. If not set, the cycles continue.
  /// Must be at least 1.
  std::optional<int64_t> cycle_limit{};

  /// The lowest value. Must not be negative.
  double min_lr = 0.0;
  /// Exponent of the progress within a cycle. With values above 1, the value decays later. Must be
  /// positive.
  double k_decay = 1.0;

  /// Number of updates of linear warm-up from `warmup_start_lr` at the start of each cycle. Must
  /// not be negative, and must be less than `first_cycle_updates`.
  RunExpression warmup_updates = 0;
  /// The value of the first update of a warm-up. Must not be negative.
  double warmup_start_lr = 0.0;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(first_cycle_updates, num_cycles, cycle_mult, cycle_decay, cycle_limit, min_lr,
                 k_decay, warmup_updates, warmup_start_lr, field);
  /// Keys from earlier builds of 0.1, which text options may still use.
  static constexpr FormerKey kFormerKeys[] = {{"T_0", "first_cycle_updates"},
                                              {"T_mult", "cycle_mult"},
                                              {"eta_min", "min_lr"},
                                              {"warmup_t", "warmup_updates"},
                                              {"warmup_lr_init", "warmup_start_lr"}};
};

/// A cosine schedule with restarts. Each cycle is a half cosine. Cycle i (from 0) has T updates, of
/// which W are warm-up. After t updates of the cycle, with the peak p = base * cycle_decay^i,
/// w = warmup_start_lr, m = min_lr and k = k_decay:
///
///     f = w + t (p - w) / W                                       t < W
///         m + (p - m) / 2 * (1 + cos(pi ((t - W) / (T - W))^k))   otherwise
///
/// Covers PyTorch's CosineAnnealingWarmRestarts and timm's CosineLRScheduler. timm warms up only
/// once, before the first cycle; use WarmupScheduler for that.
class LINKBOY_API CosineRestartsScheduler final : public CurveScheduler {
 public:
  /// The options type of the constructor.
  using Options = CosineRestartsSchedulerOptions;

  /// @throws OptionError if an option is out of range, or if both `first_cycle_updates` and
  ///         `num_cycles` are set; Error if an expression has no valid value in this run.
  CosineRestartsScheduler(torch::optim::Optimizer& optimizer,
                          const CosineRestartsSchedulerOptions& options, const RunConfig& config);

  double value_at(int64_t update, double base) const override;
  std::vector<Length> lengths() const override;

 private:
  double cycle_start(double cycle) const;
  double cycle_of(double update) const;

  CosineRestartsSchedulerOptions options_;
  double first_cycle_;
  double warmup_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn cosine_restarts(CosineRestartsSchedulerOptions options = {}) {
  return scheduler_fn<CosineRestartsScheduler>(std::move(options));
}

}  // namespace linkboy
