#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"

namespace linkboy {

struct WsdSchedulerOptions {
  /// With t from 0 to 1 over a decay phase and m = min_lr_ratio, the share of the base value is
  ///     sqrt      m + (1 - m) (1 - sqrt(t))
  ///     inverse   1 / (t / m + 1 - t)
  ///     linear    m + (1 - m) (1 - t)
  enum class Decay { sqrt, inverse, linear };
  friend LINKBOY_ENUM_NAMES(Decay, sqrt, inverse, linear);

  /// Updates in the whole schedule; whole, at least 1.
  RunExpression num_updates = placeholders::num_updates;
  /// Updates of linear warm-up; whole, not negative.
  RunExpression warmup_updates = 0;
  /// The value of the first update of the warm-up; not negative.
  double warmup_start_lr = 1e-6;

  /// The curve of each decay.
  Decay decay = Decay::sqrt;
  /// Share of each period that decays; above 0, at most 1. A decay has at least 2 updates, the
  /// first of them with the base value.
  double decay_phase_ratio = 0.1;
  /// The end of a decay as a share of the base value; from 0 to 1, above 0 for inverse.
  double min_lr_ratio = 1e-6;

  /// Periods, each with a decay and a checkpoint at its end; at least 1.
  int64_t num_checkpoints = 1;
  /// Continues from a checkpoint of another run: `Trainer::load_checkpoint` takes its base values
  /// only (see `continued`), and the schedule starts at its beginning, without warm-up.
  bool is_continuation_from_checkpoint = false;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(num_updates, warmup_updates, warmup_start_lr, decay, decay_phase_ratio,
                 min_lr_ratio, num_checkpoints, is_continuation_from_checkpoint, field);
  /// Keys of version 0.1, which texts may still have.
  static constexpr FormerKey kFormerKeys[] = {{"total_steps", "num_updates"},
                                              {"num_warmup_steps", "warmup_updates"},
                                              {"warmup_starting_lr", "warmup_start_lr"},
                                              {"lr_min", "min_lr_ratio"}};
};

/// Warm-up, stable, decay. With several checkpoints the last one is at the end of the run and each
/// other one half-way to the next: 4 checkpoints of 800 updates are at 100, 200, 400 and 800; after
/// each of them the value is back at the base value.
///
/// After pytorch-accelerated's WSDLrScheduler; its checkpoints missed the end of the run.
class LINKBOY_API WsdScheduler final : public CurveScheduler {
 public:
  /// See the options.
  using Options = WsdSchedulerOptions;

  /// A period in updates: [begin, decay_begin) is stable, [decay_begin, end) decays, and after
  /// update `end` it is time for the checkpoint.
  struct Period {
    /// The first update of the period, from 0.
    int64_t begin;
    /// The first that decays.
    int64_t decay_begin;
    /// One past the last.
    int64_t end;
  };

  /// @throws Error if an option is out of its range, a placeholder has no value, the warm-up
  ///         reaches into the first decay or there are more checkpoints than the run has room for.
  WsdScheduler(torch::optim::Optimizer& optimizer, const WsdSchedulerOptions& options,
               const RunConfig& config);

  double value_at(int64_t update, double base) const override;
  std::vector<Length> lengths() const override;
  StateDict continued(const StateDict& state) const override;

  /// One for each checkpoint, in order.
  const std::vector<Period>& periods() const { return periods_; }
  /// The period to which update `update + 1` belongs; the last one after the end.
  const Period& period_at(int64_t update) const;
  /// The updates after which to save: the end of each period.
  std::vector<int64_t> checkpoint_updates() const;

 private:
  WsdSchedulerOptions options_;
  int64_t warmup_;
  std::vector<Period> periods_;
};

/// Returns a function for `TrainOptions::create_scheduler_fn`.
inline CreateSchedulerFn wsd(WsdSchedulerOptions options = {}) {
  return scheduler_fn<WsdScheduler>(std::move(options));
}

}  // namespace linkboy
