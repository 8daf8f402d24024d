#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

struct MultiStepSchedulerOptions {
  /// Numbers of updates after which the value is multiplied by `gamma`. Must be whole numbers, at
  /// least 1, and increasing. Must not be empty.
  Required<std::vector<RunExpression>> milestones;
  /// Factor at each milestone. Must be positive.
  double gamma = 0.1;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(milestones, gamma, field);
};

/// Multiplies by gamma at each milestone: f(n) = base * gamma^k, where k is the number of
/// milestones that are at most n. Equivalent to PyTorch's MultiStepLR.
class LINKBOY_API MultiStepScheduler final : public CurveScheduler {
 public:
  /// The options type of the constructor.
  using Options = MultiStepSchedulerOptions;

  /// @throws OptionError if an option is out of range; Error if an expression has no valid value in
  ///         this run.
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
