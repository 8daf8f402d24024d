#pragma once

#include <cstdint>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct LinearSchedulerOptions {
  /// Share of the base value at the start; from 0 to 1.
  double start_factor = 1.0 / 3;
  /// Share of the base value at the end; from 0 to 1.
  double end_factor = 1.0;
  /// Updates from start to end; whole, at least 1.
  RunExpression num_updates = placeholders::num_updates;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(start_factor, end_factor, num_updates, field);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"total_iters", "num_updates"}};
};

/// A straight line from base * start_factor at n = 0 to base * end_factor at n = num_updates, where
/// it stays. PyTorch's LinearLR.
class LINKBOY_API LinearScheduler final : public CurveScheduler {
 public:
  /// See the options.
  using Options = LinearSchedulerOptions;

  /// @throws Error if an option is out of its range or a placeholder has no value.
  LinearScheduler(torch::optim::Optimizer& optimizer, const LinearSchedulerOptions& options,
                  const RunConfig& config);

  double value_at(int64_t update, double base) const override;
  std::vector<Length> lengths() const override;

 private:
  double start_factor_;
  double end_factor_;
  int64_t length_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn linear(LinearSchedulerOptions options = {}) {
  return scheduler_fn<LinearScheduler>(std::move(options));
}

}  // namespace linkboy
