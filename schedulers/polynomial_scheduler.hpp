#pragma once

#include <cstdint>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct PolynomialSchedulerOptions {
  /// Updates until the end; whole, at least 1.
  RunExpression num_updates = placeholders::num_updates;
  /// Positive; 1 is a straight line.
  double power = 1.0;
  /// The value at the end; not negative.
  double min_lr = 0.0;
  /// Exponent on the progress: above 1 decays later. Positive.
  double k_decay = 1.0;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(num_updates, power, min_lr, k_decay, field);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"total_iters", "num_updates"}, {"lr_min", "min_lr"}};
};

/// f(n) = m + (base - m) * (1 - (n / N)^k)^power with N = num_updates, m = min_lr; m from N on.
/// PyTorch's PolynomialLR (m = 0, k = 1) and timm's PolyLRScheduler.
class LINKBOY_API PolynomialScheduler final : public CurveScheduler {
 public:
  /// See the options.
  using Options = PolynomialSchedulerOptions;

  /// @throws Error if an option is out of its range or a placeholder has no value.
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
