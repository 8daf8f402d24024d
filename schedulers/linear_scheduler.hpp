#pragma once

#include <cstdint>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct LinearSchedulerOptions {
  /// Fraction of the base value at the start. Must be in [0, 1].
  double start_factor = 1.0 / 3;
  /// Fraction of the base value at the end. Must be in [0, 1].
  double end_factor = 1.0;
  /// Number of updates from start to end. Must be a whole number and at least 1.
  RunExpression num_updates = placeholders::num_updates;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(start_factor, end_factor, num_updates, field);
  /// Keys from earlier builds of 0.1, which text options may still use.
  static constexpr FormerKey kFormerKeys[] = {{"total_iters", "num_updates"}};
};

/// Changes linearly from base * start_factor at n = 0 to base * end_factor at n = num_updates, and
/// stays there. Equivalent to PyTorch's LinearLR.
class LINKBOY_API LinearScheduler final : public CurveScheduler {
 public:
  /// The options type of the constructor.
  using Options = LinearSchedulerOptions;

  /// @throws OptionError if an option is out of range; Error if an expression has no valid value in
  ///         this run.
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
