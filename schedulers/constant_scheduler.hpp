#pragma once

#include <cstdint>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct ConstantSchedulerOptions {
  /// From 0 to 1.
  double factor = 1.0 / 3;
  /// Updates that use the factor; whole, not negative.
  RunExpression num_updates = placeholders::num_updates;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(factor, num_updates, field);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"total_iters", "num_updates"}};
};

/// base * factor for the first num_updates updates, then base. PyTorch's ConstantLR.
class LINKBOY_API ConstantScheduler final : public CurveScheduler {
 public:
  /// See the options.
  using Options = ConstantSchedulerOptions;

  /// @throws Error if an option is out of its range or a placeholder has no value.
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
