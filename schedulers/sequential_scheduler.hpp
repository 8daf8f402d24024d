#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/schedulers/composite_scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

struct SequentialSchedulerOptions {
  /// At least one. For each of them, the placeholders num_updates and num_epochs are the updates
  /// and epochs of its own (a begun epoch counts as one). A plateau counts metrics in its turn
  /// only.
  Required<std::vector<CreateSchedulerFn>> schedulers;
  /// Updates after which the next scheduler takes over, one fewer than schedulers; whole, at least
  /// 1, increasing.
  std::vector<RunExpression> milestones{};
};

/// One schedule after the other, each from its own beginning: f(n) = f_i(n - milestone_i) from
/// milestone_i on. PyTorch's SequentialLR.
class LINKBOY_API SequentialScheduler final : public CompositeScheduler {
 public:
  /// See the options.
  using Options = SequentialSchedulerOptions;

  /// @throws Error if the number of milestones does not fit, they do not increase, or the parts
  ///         set different fields; what the parts throw.
  SequentialScheduler(torch::optim::Optimizer& optimizer, const SequentialSchedulerOptions& options,
                      const RunConfig& config);

  std::vector<double> values_at(int64_t update) const override;
  std::vector<FieldValues> other_values_at(int64_t update) const override;
  std::vector<Length> lengths() const override;

 protected:
  bool has_turn(std::size_t part, int64_t update) const override;
  int64_t part_update(std::size_t part, int64_t update) const override {
    return update - begins_[part];
  }

 private:
  std::size_t part_at(int64_t update) const;

  /// Updates before each part; 0 first.
  std::vector<int64_t> begins_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn sequential(SequentialSchedulerOptions options) {
  return scheduler_fn<SequentialScheduler>(std::move(options));
}

}  // namespace linkboy
