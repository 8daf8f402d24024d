#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/schedulers/option_reader.hpp"

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

 private:
  /// The position of an update between two levels.
  struct Place {
    int from;
    int to;
    double progress;
  };

  Place place_of(int64_t update) const;
  /// @param levels  The values at the start, at the peak and at the end.
  double value_between(const Place& place, std::array<double, 3> levels) const;

  OneCycleSchedulerOptions options_;
  int64_t length_;
};
/// Makes a OneCycleScheduler.
inline constexpr SchedulerMaker<OneCycleScheduler> one_cycle{};

struct CyclicSchedulerOptions {
  /// How the amplitude of the cycles changes.
  enum class Mode { triangular, triangular2, exp_range };
  friend LINKBOY_ENUM_NAMES(Mode, triangular, triangular2, exp_range);
  /// The argument of `scale_fn`.
  enum class ScaleMode { cycle, iterations };

  /// The lower end of a cycle. If not set, a tenth of the upper end. Must not be negative.
  std::optional<PerGroup> base_lr{};
  /// The upper end of a cycle. If not set, the group's base value. Must not be negative.
  std::optional<PerGroup> max_lr{};
  /// Number of updates in the rising part of a cycle. Must be positive.
  RunExpression step_size_up = placeholders::num_updates / 2;
  /// Number of updates in the falling part of a cycle. If not set, `step_size_up`. Must be
  /// positive.
  std::optional<RunExpression> step_size_down{};

  /// How the amplitude of the cycles changes: `triangular` keeps it, `triangular2` halves it after
  /// each cycle, and `exp_range` multiplies it by `gamma` after each update.
  Mode mode = Mode::triangular;
  /// Factor per update in `exp_range`. Must be positive.
  double gamma = 1.0;
  /// A function that returns the factor of the amplitude. If set, replaces `mode`.
  std::function<double(double)> scale_fn{};
  /// The argument of `scale_fn`: the number of the cycle, from 1, or of the update, from 0.
  ScaleMode scale_mode = ScaleMode::cycle;

  /// If true, also moves the momentum (beta1 in the Adam family), in the direction opposite to the
  /// main field.
  bool cycle_momentum = true;
  /// The momentum when the main field is at its highest. Must not be negative.
  PerGroup base_momentum = 0.8;
  /// The momentum when the main field is at its lowest. Must not be negative.
  PerGroup max_momentum = 0.9;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(base_lr, max_lr, step_size_up, step_size_down, mode, gamma, cycle_momentum,
                 base_momentum, max_momentum, field);
  LINKBOY_FUNCTIONS(scale_fn);
};

/// Moves linearly up and down between `base_lr` and `max_lr` in cycles. Equivalent to PyTorch's
/// CyclicLR. As in PyTorch, a `base_lr` above `max_lr` turns the cycles upside down: each begins
/// and ends at the larger value.
class LINKBOY_API CyclicScheduler final : public Scheduler {
 public:
  /// The options type of the constructor.
  using Options = CyclicSchedulerOptions;

  /// @throws OptionError if an option is out of range or has a wrong number of values, or if
  ///         `cycle_momentum` is true and `field` is the momentum; Error if an expression has no
  ///         valid value in this run, or if `cycle_momentum` is true and the optimizer does not
  ///         have a momentum.
  CyclicScheduler(torch::optim::Optimizer& optimizer, const CyclicSchedulerOptions& options,
                  const RunConfig& config);

  std::vector<double> values_at(int64_t update) const override;
  std::vector<FieldValues> other_values_at(int64_t update) const override;

 private:
  /// Returns 0 at the lower end of a cycle and, before scaling, 1 at its upper end.
  double height_at(int64_t update) const;

  CyclicSchedulerOptions options_;
  double step_size_up_;
  double step_size_down_;
};
/// Makes a CyclicScheduler.
inline constexpr SchedulerMaker<CyclicScheduler> cyclic{};

}  // namespace linkboy
