#pragma once

#include <cstdint>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct TanhSchedulerOptions {
  /// Number of updates until the end. Must be a whole number and at least 1.
  RunExpression num_updates = placeholders::num_updates;
  /// Argument of the hyperbolic tangent at the start. Must be less than `tanh_end`.
  double tanh_start = -7.0;
  /// Argument of the hyperbolic tangent at the end.
  double tanh_end = 3.0;
  /// The value at the end. Must not be negative.
  double min_lr = 0.0;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(num_updates, tanh_start, tanh_end, min_lr, field);
  /// Keys from earlier builds of 0.1, which text options may still use.
  static constexpr FormerKey kFormerKeys[] = {
      {"t_initial", "num_updates"}, {"lb", "tanh_start"}, {"ub", "tanh_end"}, {"lr_min", "min_lr"}};
};

/// A decay along a hyperbolic tangent. With t = n / num_updates and m = min_lr:
///
///     f(n) = m + (base - m) / 2 * (1 - tanh(tanh_start * (1 - t) + tanh_end * t))   t < 1
///            m                                                                      otherwise
///
/// Equivalent to timm's TanhLRScheduler.
class LINKBOY_API TanhScheduler final : public CurveScheduler {
 public:
  /// The options type of the constructor.
  using Options = TanhSchedulerOptions;

  /// @throws OptionError if an option is out of range; Error if an expression has no valid value in
  ///         this run.
  TanhScheduler(torch::optim::Optimizer& optimizer, const TanhSchedulerOptions& options,
                const RunConfig& config);

  double value_at(int64_t update, double base) const override;
  std::vector<Length> lengths() const override;

 private:
  TanhSchedulerOptions options_;
  double length_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn tanh_decay(TanhSchedulerOptions options = {}) {
  return scheduler_fn<TanhScheduler>(std::move(options));
}

}  // namespace linkboy
