#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct LambdaSchedulerOptions {
  /// The factor after n updates: one function for all param groups, or one for each. Pure. Asked
  /// for n from 0 to the number of updates, like PyTorch's; a value that no update uses may be
  /// invalid.
  std::vector<std::function<double(int64_t)>> lr_lambda{};
  /// True multiplies the factors of updates 1 to n; false takes the n-th alone.
  bool is_multiplicative = false;
  ParamGroupField field = ParamGroupField::lr;
};

/// f(n) = base * lr_lambda(n): PyTorch's LambdaLR. Multiplicative: f(n) = base * lr_lambda(1) * ...
/// * lr_lambda(n), its MultiplicativeLR; `values_at` then costs n calls, unless it is asked in
/// order.
class LINKBOY_API LambdaScheduler final : public Scheduler {
 public:
  /// See the options.
  using Options = LambdaSchedulerOptions;

  /// @throws Error if there is no function, one is empty, or their number fits the groups not.
  LambdaScheduler(torch::optim::Optimizer& optimizer, const LambdaSchedulerOptions& options,
                  const RunConfig& config);

  std::vector<double> values_at(int64_t update) const override;

 private:
  double factor_at(std::size_t index, int64_t update) const;

  /// The product up to an update.
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
