#pragma once

#include <cstdint>
#include <optional>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct InverseSqrtSchedulerOptions {
  /// Number of updates of linear warm-up. Must be a whole number, not negative, and at most the
  /// number of updates in the run.
  RunExpression warmup_updates = 0;
  /// The value of the first update of the warm-up. Must not be negative.
  double warmup_start_lr = 0.0;
  /// Number of updates after the warm-up until the value has fallen to 1 / sqrt(2) of the base
  /// value. Defaults to `warmup_updates`, or to a tenth of the run if there is no warm-up. Must be
  /// positive.
  std::optional<RunExpression> timescale{};
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(warmup_updates, warmup_start_lr, timescale, field);
  /// Keys from earlier builds of 0.1, which text options may still use.
  static constexpr FormerKey kFormerKeys[] = {{"num_warmup_steps", "warmup_updates"},
                                              {"warmup_starting_lr", "warmup_start_lr"}};
};

/// An inverse square root decay after a linear warm-up. With W = warmup_updates,
/// w = warmup_start_lr and S = timescale:
///
///     f(n) = w + n (base - w) / W              n < W
///            base / sqrt((n - W + S) / S)      otherwise
///
/// Equivalent to transformers' get_inverse_sqrt_schedule.
class LINKBOY_API InverseSqrtScheduler final : public CurveScheduler {
 public:
  /// The options type of the constructor.
  using Options = InverseSqrtSchedulerOptions;

  /// @throws OptionError if an option is out of range; Error if an expression has no valid value in
  ///         this run.
  InverseSqrtScheduler(torch::optim::Optimizer& optimizer,
                       const InverseSqrtSchedulerOptions& options, const RunConfig& config);

  double value_at(int64_t update, double base) const override;
  std::vector<Length> lengths() const override;

 private:
  int64_t warmup_;
  double warmup_start_lr_;
  double timescale_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn inverse_sqrt(InverseSqrtSchedulerOptions options = {}) {
  return scheduler_fn<InverseSqrtScheduler>(std::move(options));
}

}  // namespace linkboy
