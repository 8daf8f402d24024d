#pragma once

#include <cstdint>
#include <optional>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct InverseSqrtSchedulerOptions {
  /// Updates of linear warm-up; whole, not negative, at most the run.
  RunExpression warmup_updates = 0;
  /// The value of the first update of the warm-up; not negative.
  double warmup_start_lr = 0.0;
  /// Updates in which the value falls to 1 / sqrt(2); above 0. The warm-up if not given, or without
  /// one a tenth of the run.
  std::optional<RunExpression> timescale{};
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(warmup_updates, warmup_start_lr, timescale, field);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"num_warmup_steps", "warmup_updates"},
                                              {"warmup_starting_lr", "warmup_start_lr"}};
};

/// With W = warmup_updates, S = timescale:
///
///     f(n) = w + n (base - w) / W              n < W
///            base / sqrt((n - W + S) / S)      otherwise
///
/// The schedule of transformers' get_inverse_sqrt_schedule.
class LINKBOY_API InverseSqrtScheduler final : public CurveScheduler {
 public:
  /// See the options.
  using Options = InverseSqrtSchedulerOptions;

  /// @throws Error if an option is out of its range or a placeholder has no value.
  InverseSqrtScheduler(torch::optim::Optimizer& optimizer,
                       const InverseSqrtSchedulerOptions& options, const RunConfig& config);

  double value_at(int64_t update, double base) const override;
  std::vector<Length> lengths() const override;

 private:
  int64_t warmup_;
  double warmup_start_lr_;
  double timescale_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn inverse_sqrt(InverseSqrtSchedulerOptions options = {}) {
  return scheduler_fn<InverseSqrtScheduler>(std::move(options));
}

}  // namespace linkboy
