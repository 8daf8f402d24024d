#pragma once

#include <cstdint>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct PolynomialSchedulerOptions {
  /// Number of updates until the end. Must be a whole number and at least 1.
  RunExpression num_updates = placeholders::num_updates;
  /// Exponent of the curve; 1 is a straight line. Must be positive.
  double power = 1.0;
  /// The value at the end. Must not be negative.
  double min_lr = 0.0;
  /// Exponent of the progress. With values above 1, the value decays later. Must be positive.
  double k_decay = 1.0;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(num_updates, power, min_lr, k_decay, field);
  /// Keys from earlier builds of 0.1, which text options may still use.
  static constexpr FormerKey kFormerKeys[] = {{"total_iters", "num_updates"}, {"lr_min", "min_lr"}};
};

/// A polynomial decay. With N = num_updates, m = min_lr and k = k_decay:
///
///     f(n) = m + (base - m) * (1 - (n / N)^k)^power   n < N
///            m                                        otherwise
///
/// Covers PyTorch's PolynomialLR (m = 0, k = 1) and timm's PolyLRScheduler.
class LINKBOY_API PolynomialScheduler final : public CurveScheduler {
 public:
  /// The options type of the constructor.
  using Options = PolynomialSchedulerOptions;

  /// @throws OptionError if an option is out of range; Error if an expression has no valid value in
  ///         this run.
  PolynomialScheduler(torch::optim::Optimizer& optimizer, const PolynomialSchedulerOptions& options,
                      const RunConfig& config);

  double value_at(int64_t update, double base) const override;
  std::vector<Length> lengths() const override;

 private:
  PolynomialSchedulerOptions options_;
  double length_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn polynomial(PolynomialSchedulerOptions options = {}) {
  return scheduler_fn<PolynomialScheduler>(std::move(options));
}

}  // namespace linkboy
