#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

/// The shape of a cosine schedule. Its lengths need not be whole.
struct CosineSchedulerOptions {
  /// Updates in the whole schedule.
  RunExpression num_updates = placeholders::num_updates;

  /// Exponent on the progress through the cosine: above 1 decays later. Positive.
  double k_decay = 1.0;

  /// The value at the end; `min_lr_ratio`, if given, replaces it by that share of the base value.
  double min_lr = 1e-6;
  /// See `min_lr`.
  std::optional<double> min_lr_ratio{};

  /// Updates of linear warm-up to the base value: `placeholders::num_updates_per_epoch * 2`.
  RunExpression warmup_updates = 0;
  /// The value of the first update of the warm-up; not negative.
  double warmup_start_lr = 1e-6;
  /// If given, replaces it by that share of the base value.
  std::optional<double> warmup_start_lr_ratio{};

  /// Updates at the end that stay at the minimum.
  RunExpression cooldown_updates = 0;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(num_updates, k_decay, min_lr, min_lr_ratio, warmup_updates, warmup_start_lr,
                 warmup_start_lr_ratio, cooldown_updates, field);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {
      {"num_epochs", "num_updates", " * num_updates_per_epoch"},
      {"num_warmup_epochs", "warmup_updates", " * num_updates_per_epoch"},
      {"num_cooldown_epochs", "cooldown_updates", " * num_updates_per_epoch"},
      {"lr_min", "min_lr"},
      {"warmup_starting_lr", "warmup_start_lr"},
      {"warmup_starting_lr_ratio", "warmup_start_lr_ratio"}};
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

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn cosine(CosineSchedulerOptions options = {}) {
  return scheduler_fn<CosineScheduler>(std::move(options));
}

}  // namespace linkboy
