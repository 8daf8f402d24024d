#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

/// Options of CosineScheduler. Numbers of updates do not have to be whole numbers.
struct CosineSchedulerOptions {
  /// Total number of updates in the schedule. Must be at least 1.
  RunExpression num_updates = placeholders::num_updates;

  /// Exponent of the progress along the cosine. With values above 1, the value decays later. Must
  /// be positive.
  double k_decay = 1.0;

  /// The value at the end, unless `min_lr_ratio` is set. Must not be negative.
  double min_lr = 1e-6;
  /// The value at the end as a fraction of the base value. If set, replaces `min_lr`. Must not be
  /// negative.
  std::optional<double> min_lr_ratio{};

  /// Number of updates of linear warm-up to the base value, for example
  /// `placeholders::num_updates_per_epoch * 2`. Must not be negative.
  RunExpression warmup_updates = 0;
  /// The value of the first update of the warm-up, unless `warmup_start_lr_ratio` is set. Must not
  /// be negative.
  double warmup_start_lr = 1e-6;
  /// The value of the first update of the warm-up as a fraction of the base value. If set, replaces
  /// `warmup_start_lr`. Must not be negative.
  std::optional<double> warmup_start_lr_ratio{};

  /// Number of updates at the end during which the value stays at the minimum. Must not be
  /// negative.
  RunExpression cooldown_updates = 0;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(num_updates, k_decay, min_lr, min_lr_ratio, warmup_updates, warmup_start_lr,
                 warmup_start_lr_ratio, cooldown_updates, field);
  /// Keys from earlier builds of 0.1, which text options may still use.
  static constexpr FormerKey kFormerKeys[] = {
      {"num_epochs", "num_updates", " * num_updates_per_epoch"},
      {"num_warmup_epochs", "warmup_updates", " * num_updates_per_epoch"},
      {"num_cooldown_epochs", "cooldown_updates", " * num_updates_per_epoch"},
      {"lr_min", "min_lr"},
      {"warmup_starting_lr", "warmup_start_lr"},
      {"warmup_starting_lr_ratio", "warmup_start_lr_ratio"}};
};

/// Warms up linearly, decays along a half cosine, and stays at the minimum for the cool-down. There
/// are N updates in total, of which W are warm-up and C are cool-down. With the base value b, the
/// minimum m, w = warmup_start_lr and k = k_decay:
///
///     f(n) = w + n (b - w) / W                                          n < W
///            m + (b - m) / 2 * (1 + cos(pi (n - W)^k / (N - W - C)^k))   n < N - C
///            m                                                          otherwise
class LINKBOY_API CosineScheduler final : public CurveScheduler {
 public:
  /// The options type of the constructor.
  using Options = CosineSchedulerOptions;

  /// @throws OptionError if an option is out of range, or if warm-up and cool-down together are not
  ///         shorter than the schedule; Error if an expression has no valid value in this run.
  CosineScheduler(torch::optim::Optimizer& optimizer, const CosineSchedulerOptions& options,
                  const RunConfig& config);

  double value_at(int64_t update, double base) const override;
  std::vector<Length> lengths() const override;

 private:
  CosineSchedulerOptions options_;
  // Numbers of updates, not necessarily whole.
  double total_;
  double warmup_;
  double cooldown_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn cosine(CosineSchedulerOptions options = {}) {
  return scheduler_fn<CosineScheduler>(std::move(options));
}

}  // namespace linkboy
