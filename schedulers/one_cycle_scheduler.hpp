#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/schedulers/per_group.hpp"

namespace linkboy {

struct OneCycleSchedulerOptions {
  /// The curve between two turning points.
  enum class AnnealStrategy { cos, linear };
  friend LINKBOY_ENUM_NAMES(AnnealStrategy, cos, linear);

  /// The peak; the group's own value if not given.
  std::optional<PerGroup> max_lr{};
  /// Updates in the cycle; whole, at least 1.
  RunExpression num_updates = placeholders::num_updates;
  /// Share of the cycle that rises; from 0 to 1, with three phases to 0.5.
  double pct_start = 0.3;
  /// The length of all phases.
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;

  /// Also moves momentum (beta1), against the main field.
  bool cycle_momentum = true;
  /// The momentum where the main field is highest.
  PerGroup base_momentum = 0.85;
  /// The momentum where the main field is lowest.
  PerGroup max_momentum = 0.95;

  /// The start is max_lr / div_factor. Positive.
  double div_factor = 25.0;
  /// The end is the start / final_div_factor. Positive.
  double final_div_factor = 1e4;
  /// Comes down to the start first, and then to the end.
  bool three_phase = false;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(max_lr, num_updates, pct_start, anneal_strategy, cycle_momentum, base_momentum,
                 max_momentum, div_factor, final_div_factor, three_phase, field);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"total_steps", "num_updates"}};
};

/// Rises from max_lr / div_factor to max_lr, falls far below, once. PyTorch's OneCycleLR; after its
/// last update the values stay.
class LINKBOY_API OneCycleScheduler final : public Scheduler {
 public:
  /// See the options.
  using Options = OneCycleSchedulerOptions;

  /// @throws Error if an option is out of its range, a placeholder has no value, or momentum is to
  ///         cycle and the optimizer lacks them.
  OneCycleScheduler(torch::optim::Optimizer& optimizer, const OneCycleSchedulerOptions& options,
                    const RunConfig& config);

  std::vector<double> values_at(int64_t update) const override;
  std::vector<FieldValues> other_values_at(int64_t update) const override;
  std::vector<Length> lengths() const override;

 private:
  enum class Level { start, peak, end };

  /// Where between two levels an update is.
  struct Place {
    Level from;
    Level to;
    double progress;
  };

  Place place_of(int64_t update) const;
  double anneal(double from, double to, double progress) const;

  OneCycleSchedulerOptions options_;
  int64_t length_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn one_cycle(OneCycleSchedulerOptions options = {}) {
  return scheduler_fn<OneCycleScheduler>(std::move(options));
}

}  // namespace linkboy
