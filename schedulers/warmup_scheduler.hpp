#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/schedulers/composite_scheduler.hpp"

namespace linkboy {

struct WarmupSchedulerOptions {
  /// The schedule after the warm-up. If empty, the values stay at the base values. If
  /// `warmup_prefix` is true, this schedule's placeholders num_updates and num_epochs are the
  /// numbers of updates and epochs after the warm-up (a partial epoch counts as one). A plateau
  /// schedule counts metrics from the end of the warm-up on.
  CreateSchedulerFn scheduler{};
  /// Number of updates of linear warm-up. Does not have to be a whole number. Must not be negative,
  /// and must be at most the number of updates in the run.
  RunExpression warmup_updates = placeholders::num_updates_per_epoch;
  /// The value of the first update. Must not be negative.
  double warmup_start_lr = 0.0;
  /// If true, the schedule begins at the end of the warm-up. If false, it begins at the first
  /// update, and its values are used from the end of the warm-up on.
  bool warmup_prefix = true;
};

/// Rises linearly to the value of another schedule g, then follows g. W is warmup_updates, W' is W
/// rounded up, and w is warmup_start_lr. s is W' if `warmup_prefix` is true, otherwise 0:
///
///     f(n) = w + n (g(W' - s) - w) / W   n < W
///            g(n - s)                    otherwise
///
/// Equivalent to the warm-up of timm's schedulers, but without a jump at its end.
class LINKBOY_API WarmupScheduler final : public CompositeScheduler {
 public:
  /// The options type of the constructor.
  using Options = WarmupSchedulerOptions;

  /// @throws OptionError if the warm-up is longer than the run or an option is out of range; Error
  ///         if an expression has no valid value in this run; any error of the other schedule's
  ///         constructor.
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
