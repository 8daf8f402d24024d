#pragma once

#include <cstdint>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct ConstantSchedulerOptions {
  /// Fraction of the base value in the first `num_updates` updates. Must be in [0, 1].
  double factor = 1.0 / 3;
  /// Number of updates that use `factor`. Must be a whole number and not negative.
  RunExpression num_updates = placeholders::num_updates;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(factor, num_updates, field);
  /// Keys from earlier builds of 0.1, which text options may still use.
  static constexpr FormerKey kFormerKeys[] = {{"total_iters", "num_updates"}};
};

/// The value is base * factor for the first `num_updates` updates, then base. Equivalent to
/// PyTorch's ConstantLR.
class LINKBOY_API ConstantScheduler final : public CurveScheduler {
 public:
  /// The options type of the constructor.
  using Options = ConstantSchedulerOptions;

  /// @throws OptionError if an option is out of range; Error if an expression has no valid value in
  ///         this run.
  ConstantScheduler(torch::optim::Optimizer& optimizer, const ConstantSchedulerOptions& options,
                    const RunConfig& config);

  double value_at(int64_t update, double base) const override;
  std::vector<Length> lengths() const override;

 private:
  double factor_;
  int64_t length_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn constant(ConstantSchedulerOptions options = {}) {
  return scheduler_fn<ConstantScheduler>(std::move(options));
}

}  // namespace linkboy
