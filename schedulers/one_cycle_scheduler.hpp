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
  /// The shape of the curve between two turning points.
  enum class AnnealStrategy { cos, linear };
  friend LINKBOY_ENUM_NAMES(AnnealStrategy, cos, linear);

  /// The peak. If not set, the group's base value. Must not be negative.
  std::optional<PerGroup> max_lr{};
  /// Number of updates in the cycle. Must be a whole number and at least 1.
  RunExpression num_updates = placeholders::num_updates;
  /// Fraction of the cycle during which the value rises. Must be in [0, 1], or in [0, 0.5] if
  /// `three_phase` is true.
  double pct_start = 0.3;
  /// The shape of the curve in all phases.
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;

  /// If true, also moves the momentum (beta1 in the Adam family), in the direction opposite to the
  /// main field.
  bool cycle_momentum = true;
  /// The momentum when the main field is at its highest. Must not be negative.
  PerGroup base_momentum = 0.85;
  /// The momentum when the main field is at its lowest. Must not be negative.
  PerGroup max_momentum = 0.95;

  /// The value at the start is max_lr / div_factor. Must be positive.
  double div_factor = 25.0;
  /// The value at the end is the value at the start / final_div_factor. Must be positive.
  double final_div_factor = 1e4;
  /// If true, the value first falls to the value at the start, in as many updates as it rose, and
  /// then to the value at the end. If false, it falls directly to the value at the end.
  bool three_phase = false;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(max_lr, num_updates, pct_start, anneal_strategy, cycle_momentum, base_momentum,
                 max_momentum, div_factor, final_div_factor, three_phase, field);
};

/// Rises once from max_lr / div_factor to max_lr, then falls far below the value at the start.
/// After the last update the values stay constant. Equivalent to PyTorch's OneCycleLR.
class LINKBOY_API OneCycleScheduler final : public Scheduler {
 public:
  /// The options type of the constructor.
  using Options = OneCycleSchedulerOptions;

  /// @throws OptionError if an option is out of range or has a wrong number of values, or if
  ///         `cycle_momentum` is true and `field` is the momentum; Error if an expression has no
  ///         valid value in this run, or if `cycle_momentum` is true and the optimizer does not
  ///         have a momentum.
  OneCycleScheduler(torch::optim::Optimizer& optimizer, const OneCycleSchedulerOptions& options,
                    const RunConfig& config);

  std::vector<double> values_at(int64_t update) const override;
  std::vector<FieldValues> other_values_at(int64_t update) const override;
  std::vector<Length> lengths() const override;

 private:
  enum class Level { start, peak, end };

  /// The position of an update between two levels.
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
