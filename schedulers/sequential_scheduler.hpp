#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/schedulers/composite_scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

struct SequentialSchedulerOptions {
  /// The schedulers, in order. Must not be empty. For each scheduler, the placeholders num_updates
  /// and num_epochs are the numbers of updates and epochs in its part of the run (a partial epoch
  /// counts as one). A plateau schedule counts metrics only during its turn.
  Required<std::vector<CreateSchedulerFn>> schedulers;
  /// Numbers of updates after which the next scheduler takes over. There must be one fewer
  /// milestone than schedulers. Must be whole numbers, at least 1, and increasing.
  std::vector<RunExpression> milestones{};
};

/// Runs one schedule after another, each from its own beginning: f(n) = f_i(n - milestone_i) from
/// milestone_i on. Equivalent to PyTorch's SequentialLR.
class LINKBOY_API SequentialScheduler final : public CompositeScheduler {
 public:
  /// The options type of the constructor.
  using Options = SequentialSchedulerOptions;

  /// @throws OptionError if the milestones are less than 1 or do not increase, or if their number
  ///         is wrong; Error if an expression has no valid value in this run, or the parts have
  ///         different main fields; any error of the parts' constructors.
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

  /// Number of updates before each part; the first is 0.
  std::vector<int64_t> begins_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn sequential(SequentialSchedulerOptions options) {
  return scheduler_fn<SequentialScheduler>(std::move(options));
}

}  // namespace linkboy
