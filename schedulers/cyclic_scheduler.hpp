#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/schedulers/per_group.hpp"

namespace linkboy {

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
  std::vector<Length> lengths() const override;

 private:
  /// Returns 0 at the lower end of a cycle and, before scaling, 1 at its upper end.
  double height_at(int64_t update) const;

  CyclicSchedulerOptions options_;
  double step_size_up_;
  double step_size_down_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn cyclic(CyclicSchedulerOptions options = {}) {
  return scheduler_fn<CyclicScheduler>(std::move(options));
}

}  // namespace linkboy
