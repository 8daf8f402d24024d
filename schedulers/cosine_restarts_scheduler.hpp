#pragma once

#include <cstdint>
#include <optional>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

/// Give either `first_cycle_updates` or `num_cycles`, or neither: one cycle over the run.
struct CosineRestartsSchedulerOptions {
  /// Updates in the first cycle; above 0.
  std::optional<RunExpression> first_cycle_updates{};
  /// Cycles that together fill the run; at least 1.
  std::optional<int64_t> num_cycles{};

  /// Each cycle is so many times as long as the one before; at least 1.
  double cycle_mult = 1.0;
  /// Each cycle starts so many times as high as the one before; above 0.
  double cycle_decay = 1.0;
  /// After this many cycles the value stays at min_lr; by default the cycles continue.
  std::optional<int64_t> cycle_limit{};

  /// The lowest value; not negative.
  double min_lr = 0.0;
  /// Exponent on the progress through a cycle: above 1 decays later. Positive.
  double k_decay = 1.0;

  /// Updates of linear warm-up at the start of each cycle, from `warmup_start_lr`; fewer than
  /// first_cycle_updates.
  RunExpression warmup_updates = 0;
  /// The value of the first update of a warm-up; not negative.
  double warmup_start_lr = 0.0;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(first_cycle_updates, num_cycles, cycle_mult, cycle_decay, cycle_limit, min_lr,
                 k_decay, warmup_updates, warmup_start_lr, field);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"T_0", "first_cycle_updates"},
                                              {"T_mult", "cycle_mult"},
                                              {"eta_min", "min_lr"},
                                              {"warmup_t", "warmup_updates"},
                                              {"warmup_lr_init", "warmup_start_lr"}};
};

/// Half cosines that restart. In cycle i (from 0) of T updates, W of them warm-up, t updates
/// after its start, with peak p = base * cycle_decay^i and m = min_lr:
///
///     f = w + t (p - w) / W                                       t < W
///         m + (p - m) / 2 * (1 + cos(pi ((t - W) / (T - W))^k))   otherwise
///
/// PyTorch's CosineAnnealingWarmRestarts, timm's CosineLRScheduler (whose one warm-up before the
/// first cycle is WarmupScheduler's).
class LINKBOY_API CosineRestartsScheduler final : public CurveScheduler {
 public:
  /// See the options.
  using Options = CosineRestartsSchedulerOptions;

  /// @throws Error if an option is out of its range, both first_cycle_updates and num_cycles are
  ///         given, or a placeholder has no value.
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
