#pragma once

#include <cstdint>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct StepSchedulerOptions {
  /// Updates between two steps; whole, at least 1.
  RunExpression step_size = placeholders::num_updates;
  /// Factor of each step; positive.
  double gamma = 0.1;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(step_size, gamma, field);
};

/// Multiplies by gamma every step_size updates: f(n) = base * gamma^floor(n / step_size). PyTorch's
/// StepLR.
class LINKBOY_API StepScheduler final : public CurveScheduler {
 public:
  /// See the options.
  using Options = StepSchedulerOptions;

  /// @throws Error if an option is out of its range or a placeholder has no value.
  StepScheduler(torch::optim::Optimizer& optimizer, const StepSchedulerOptions& options,
                const RunConfig& config);

  double value_at(int64_t update, double base) const override;
  std::vector<Length> lengths() const override;

 private:
  int64_t step_size_;
  double gamma_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn step_decay(StepSchedulerOptions options = {}) {
  return scheduler_fn<StepScheduler>(std::move(options));
}

}  // namespace linkboy
