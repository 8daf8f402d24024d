#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/schedulers/composite_scheduler.hpp"

namespace linkboy {

struct WarmupSchedulerOptions {
  /// What follows; without one the base values stay. For it, the placeholders num_updates and
  /// num_epochs are what the warm-up leaves of the run (a begun epoch counts as one). A plateau
  /// counts metrics from the end of the warm-up on.
  CreateSchedulerFn scheduler{};
  /// Updates of linear warm-up; not negative, at most the run, not always whole.
  RunExpression warmup_updates = placeholders::num_updates_per_epoch;
  /// The value of the first update; not negative.
  double warmup_start_lr = 0.0;
  /// True has the schedule begin at the end of the warm-up; false has it run from the first update,
  /// out of sight until then.
  bool warmup_prefix = true;
};

/// Rises linearly to the first value of any other schedule, and then follows it. With w =
/// warmup_start_lr, W = warmup_updates and s = W rounded up with a prefix, 0 without:
///
///     f(n) = w + n (g(W' - s) - w) / W   n < W
///            g(n - s)                    otherwise            W' = W rounded up
///
/// The warm-up of timm's schedulers, without a jump at its end.
class LINKBOY_API WarmupScheduler final : public CompositeScheduler {
 public:
  /// See the options.
  using Options = WarmupSchedulerOptions;

  /// @throws Error if the warm-up is longer than the run or an option is out of its range; what
  ///         the other schedule throws.
  WarmupScheduler(torch::optim::Optimizer& optimizer, const WarmupSchedulerOptions& options,
                  const RunConfig& config);

  std::vector<double> values_at(int64_t update) const override;
  std::vector<FieldValues> other_values_at(int64_t update) const override;
  std::vector<Length> lengths() const override;

 protected:
  bool has_turn(std::size_t part, int64_t update) const override;
  int64_t part_update(std::size_t /*part*/, int64_t update) const override {
    return inner_update(update);
  }

 private:
  int64_t inner_update(int64_t update) const;

  double warmup_;
  double warmup_start_lr_;
  bool is_prefix_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn warmup(WarmupSchedulerOptions options) {
  return scheduler_fn<WarmupScheduler>(std::move(options));
}

}  // namespace linkboy
