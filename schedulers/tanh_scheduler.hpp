#pragma once

#include <cstdint>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct TanhSchedulerOptions {
  /// Updates until the end; whole, at least 1.
  RunExpression num_updates = placeholders::num_updates;
  /// Where the part of the hyperbolic tangent begins that is used; below `tanh_end`.
  double tanh_start = -7.0;
  /// Where it ends.
  double tanh_end = 3.0;
  /// The value at the end; not negative.
  double min_lr = 0.0;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(num_updates, tanh_start, tanh_end, min_lr, field);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {
      {"t_initial", "num_updates"}, {"lb", "tanh_start"}, {"ub", "tanh_end"}, {"lr_min", "min_lr"}};
};

/// f(n) = m + (base - m) / 2 * (1 - tanh(tanh_start * (1 - t) + tanh_end * t)) with t = n /
/// num_updates, m = min_lr; m from num_updates on. timm's TanhLRScheduler.
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
  double length_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn tanh_decay(TanhSchedulerOptions options = {}) {
  return scheduler_fn<TanhScheduler>(std::move(options));
}

}  // namespace linkboy
