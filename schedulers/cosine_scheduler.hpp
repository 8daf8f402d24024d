#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

/// The shape of a cosine schedule. Lengths are in epochs, whole or not, and take placeholders.
struct CosineSchedulerOptions {
  /// The whole run, if not given.
  std::optional<RunExpression> num_epochs{};
  /// Updates of an epoch; the run's by default.
  RunExpression num_update_steps_per_epoch = placeholders::num_updates_per_epoch;

  /// Exponent on the progress through the cosine: above 1 decays later. Positive.
  double k_decay = 1.0;

  /// The value at the end; `min_lr_ratio`, if given, replaces it by that share of the base value.
  double min_lr = 1e-6;
  /// See `min_lr`.
  std::optional<double> min_lr_ratio{};

  /// Linear warm-up from `warmup_start_lr` (or that share of the base value) to the base value.
  RunExpression num_warmup_epochs = 0;
  /// Not negative.
  double warmup_start_lr = 1e-6;
  /// If given, replaces it by that share of the base value.
  std::optional<double> warmup_start_lr_ratio{};

  /// Epochs at the end that stay at the minimum.
  RunExpression num_cooldown_epochs = 0;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(num_epochs, num_update_steps_per_epoch, k_decay, min_lr, min_lr_ratio,
                 num_warmup_epochs, warmup_start_lr, warmup_start_lr_ratio,
                 num_cooldown_epochs, field);
};

/// Warms up linearly, decays along a half cosine, stays at the minimum for the cool-down. With the
/// lengths N (all), W (warm-up), C (cool-down) in updates, base value b and minimum m:
///
///     f(n) = w + n (b - w) / W                                          n < W
///            m + (b - m) / 2 * (1 + cos(pi (n - W)^k / (N - W - C)^k))   n < N - C
///            m                                                          otherwise
class LINKBOY_API CosineScheduler final : public CurveScheduler {
 public:
  /// See the options.
  using Options = CosineSchedulerOptions;

  /// @throws Error if warm-up and cool-down leave nothing of the run, a length or a value is
  ///         negative, k_decay is not positive, or a placeholder has no value.
  CosineScheduler(torch::optim::Optimizer& optimizer, const CosineSchedulerOptions& options,
                  const RunConfig& config);

  double value_at(int64_t update, double base) const override;
  std::vector<Length> lengths() const override;

 private:
  CosineSchedulerOptions options_;
  // In updates, not always whole.
  double total_;
  double warmup_;
  double cooldown_;
};

/// For `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn cosine(CosineSchedulerOptions options = {}) {
  return scheduler_fn<CosineScheduler>(std::move(options));
}

}  // namespace linkboy
