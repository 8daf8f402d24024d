#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/schedulers/composite_scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

struct ChainedSchedulerOptions {
  /// The schedulers to combine. Must not be empty.
  Required<std::vector<CreateSchedulerFn>> schedulers;
};

/// Applies several schedules at the same time. Schedules of the same field are multiplied, as in
/// PyTorch's ChainedScheduler:
///
///     f(n) = base * (f_1(n) / base) * (f_2(n) / base) * ...
///
/// If the base value is 0, f(n) is the first of f_1(n), f_2(n), ... that is not 0; only schedules
/// with absolute values, such as OneCycleScheduler with `max_lr`, are then different from 0.
/// Schedules of different fields do not affect each other, so weight decay can follow one curve and
/// the learning rate another.
class LINKBOY_API ChainedScheduler final : public CompositeScheduler {
 public:
  /// The options type of the constructor.
  using Options = ChainedSchedulerOptions;

  /// @throws Error if there is no scheduler or a function is empty or returns null; any error of
  ///         the parts' constructors.
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
