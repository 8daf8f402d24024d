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
  /// How the height of the cycles changes: not at all, by half each cycle, by gamma each update.
  enum class Mode { triangular, triangular2, exp_range };
  friend LINKBOY_ENUM_NAMES(Mode, triangular, triangular2, exp_range);
  /// What `scale_fn` gets: the number of the cycle, from 1, or of the update, from 0.
  enum class ScaleMode { cycle, iterations };

  /// The lower end; a tenth of the upper one if not given.
  std::optional<PerGroup> base_lr{};
  /// The upper end; the group's own value if not given.
  std::optional<PerGroup> max_lr{};
  /// Updates on the way up; above 0.
  RunExpression step_size_up = placeholders::num_updates / 2;
  /// Updates on the way down, above 0; as many as on the way up if not given.
  std::optional<RunExpression> step_size_down{};

  /// How the height changes from cycle to cycle.
  Mode mode = Mode::triangular;
  /// The base of exp_range; positive.
  double gamma = 1.0;
  /// Replaces `mode`: the factor of the height.
  std::function<double(double)> scale_fn{};
  /// What `scale_fn` is a function of.
  ScaleMode scale_mode = ScaleMode::cycle;

  /// Also moves momentum (beta1), against the main field.
  bool cycle_momentum = true;
  /// The momentum where the main field is highest.
  PerGroup base_momentum = 0.8;
  /// The momentum where the main field is lowest.
  PerGroup max_momentum = 0.9;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(base_lr, max_lr, step_size_up, step_size_down, mode, gamma, cycle_momentum,
                 base_momentum, max_momentum, field);
};

/// Straight up and down between base_lr and max_lr, again and again. PyTorch's CyclicLR.
class LINKBOY_API CyclicScheduler final : public Scheduler {
 public:
  /// See the options.
  using Options = CyclicSchedulerOptions;

  /// @throws Error if an option is out of its range, a placeholder has no value, or momentum is to
  ///         cycle and the optimizer lacks them.
  CyclicScheduler(torch::optim::Optimizer& optimizer, const CyclicSchedulerOptions& options,
                  const RunConfig& config);

  std::vector<double> values_at(int64_t update) const override;
  std::vector<FieldValues> other_values_at(int64_t update) const override;
  std::vector<Length> lengths() const override;

 private:
  /// 0 at the lower end, 1 at the upper end of an unscaled cycle.
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
