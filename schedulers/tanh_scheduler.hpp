#pragma once

#include <cstdint>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct TanhSchedulerOptions {
  /// Updates until the end; whole, at least 1.
  RunExpression t_initial = NUM_UPDATE_STEPS;
  /// Where the part of the hyperbolic tangent begins that is used; below `ub`.
  double lb = -7.0;
  /// Where it ends.
  double ub = 3.0;
  /// The value at the end; not negative.
  double lr_min = 0.0;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(t_initial, lb, ub, lr_min, field);
};

/// f(n) = m + (base - m) / 2 * (1 - tanh(lb * (1 - t) + ub * t)) with t = n / t_initial, m =
/// lr_min; m from t_initial on. timm's TanhLRScheduler.
class LINKBOY_API TanhScheduler final : public CurveScheduler {
 public:
  /// See the options.
  using Options = TanhSchedulerOptions;

  /// @throws Error if an option is out of its range or a placeholder has no value.
  TanhScheduler(torch::optim::Optimizer& optimizer, const TanhSchedulerOptions& options,
                const RunConfig& config);

  double value_at(int64_t update, double base) const override;
  std::vector<Length> lengths() const override;

 private:
  TanhSchedulerOptions options_;
  double t_initial_;
};

/// For `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn tanh_decay(TanhSchedulerOptions options = {}) {
  return scheduler_fn<TanhScheduler>(std::move(options));
}

}  // namespace linkboy
