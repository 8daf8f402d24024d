#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/schedulers/composite_scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

struct ChainedSchedulerOptions {
  /// At least one.
  Required<std::vector<CreateSchedulerFn>> schedulers;
};

/// Several schedules together. Those of one field multiply: f(n) = base * (f_1(n) / base) *
/// (f_2(n) / base) ..., PyTorch's ChainedScheduler; a base value of 0 stays 0. Each other field
/// goes its own way, so that weight decay can follow one curve and the learning rate another.
class LINKBOY_API ChainedScheduler final : public CompositeScheduler {
 public:
  /// See the options.
  using Options = ChainedSchedulerOptions;

  /// @throws Error if there is no scheduler; what the parts throw.
  ChainedScheduler(torch::optim::Optimizer& optimizer, const ChainedSchedulerOptions& options,
                   const RunConfig& config);

  std::vector<double> values_at(int64_t update) const override;
  std::vector<FieldValues> other_values_at(int64_t update) const override;

 private:
  std::vector<double> product_at(int64_t update, ParamGroupField field) const;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn chained(ChainedSchedulerOptions options) {
  return scheduler_fn<ChainedScheduler>(std::move(options));
}

}  // namespace linkboy
