#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct LambdaSchedulerOptions {
  /// The factor after n updates: one function for all param groups, or one function per group. The
  /// functions must be pure. They are called with n from 0 to the number of updates, as in PyTorch.
  /// A value that no update uses may be invalid.
  std::vector<std::function<double(int64_t)>> lr_lambda{};
  /// If true, multiplies the factors of updates 1 to n. If false, uses only the n-th factor.
  bool is_multiplicative = false;
  ParamGroupField field = ParamGroupField::lr;
};

/// Multiplies the base value by a custom factor. Equivalent to PyTorch's LambdaLR or, if
/// `is_multiplicative` is true, to its MultiplicativeLR:
///
///     f(n) = base * lr_lambda(n)
///     f(n) = base * lr_lambda(1) * ... * lr_lambda(n)     if is_multiplicative
///
/// If `is_multiplicative` is true, `values_at(n)` needs n calls of a function, unless n increases
/// from call to call.
class LINKBOY_API LambdaScheduler final : public Scheduler {
 public:
  /// The options type of the constructor.
  using Options = LambdaSchedulerOptions;

  /// @throws OptionError if there is no function, a function is empty, or the number of functions
  ///         is neither 1 nor the number of param groups.
  LambdaScheduler(torch::optim::Optimizer& optimizer, const LambdaSchedulerOptions& options,
                  const RunConfig& config);

  std::vector<double> values_at(int64_t update) const override;

 private:
  double factor_at(std::size_t index, int64_t update) const;

  /// The product of the factors up to an update.
  struct Product {
    int64_t update = 0;
    double value = 1.0;
  };

  LambdaSchedulerOptions options_;
  mutable std::vector<Product> products_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn lambda_schedule(LambdaSchedulerOptions options) {
  return scheduler_fn<LambdaScheduler>(std::move(options));
}

}  // namespace linkboy
