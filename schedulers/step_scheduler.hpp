#pragma once

#include <cstdint>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct StepSchedulerOptions {
  /// Number of updates between two steps. Must be a whole number and at least 1.
  RunExpression step_size = placeholders::num_updates;
  /// Factor of each step. Must be positive.
  double gamma = 0.1;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(step_size, gamma, field);
};

/// Multiplies by gamma every step_size updates: f(n) = base * gamma^floor(n / step_size).
/// Equivalent to PyTorch's StepLR.
class LINKBOY_API StepScheduler final : public CurveScheduler {
 public:
  /// The options type of the constructor.
  using Options = StepSchedulerOptions;

  /// @throws OptionError if an option is out of range; Error if an expression has no valid value in
  ///         this run.
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
