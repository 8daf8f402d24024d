#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

struct MultiStepSchedulerOptions {
  /// Updates at which the value steps; whole, at least 1, increasing. At least one.
  Required<std::vector<RunExpression>> milestones;
  /// Factor of each step; positive.
  double gamma = 0.1;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(milestones, gamma, field);
};

/// Multiplies by gamma at each milestone: f(n) = base * gamma^(milestones <= n). PyTorch's
/// MultiStepLR.
class LINKBOY_API MultiStepScheduler final : public CurveScheduler {
 public:
  /// See the options.
  using Options = MultiStepSchedulerOptions;

  /// @throws Error if an option is out of its range or a placeholder has no value.
  MultiStepScheduler(torch::optim::Optimizer& optimizer, const MultiStepSchedulerOptions& options,
                     const RunConfig& config);

  double value_at(int64_t update, double base) const override;
  std::vector<Length> lengths() const override;

 private:
  std::vector<int64_t> milestones_;
  double gamma_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn multi_step(MultiStepSchedulerOptions options) {
  return scheduler_fn<MultiStepScheduler>(std::move(options));
}

}  // namespace linkboy
