#pragma once

#include <cstdint>

#include "linkboy/export.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

struct ExponentialSchedulerOptions {
  /// Factor per update. Must be positive.
  Required<double> gamma;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(gamma, field);
};

/// f(n) = base * gamma^n. Equivalent to PyTorch's ExponentialLR.
class LINKBOY_API ExponentialScheduler final : public CurveScheduler {
 public:
  /// The options type of the constructor.
  using Options = ExponentialSchedulerOptions;

  /// @throws OptionError if gamma is not positive and finite.
  ExponentialScheduler(torch::optim::Optimizer& optimizer,
                       const ExponentialSchedulerOptions& options, const RunConfig& config);

  double value_at(int64_t update, double base) const override;

 private:
  double gamma_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn exponential(ExponentialSchedulerOptions options) {
  return scheduler_fn<ExponentialScheduler>(options);
}

}  // namespace linkboy
