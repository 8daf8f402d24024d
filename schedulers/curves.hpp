#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/run/placeholders.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/util/required.hpp"

namespace linkboy {

/// A curve in a run whose lengths are known.
struct Curve {
  /// See `Scheduler::lengths`.
  std::vector<Scheduler::Length> lengths;
  /// Returns the value after n updates for a group whose base value is `base`.
  std::function<double(double n, double base)> value;
  /// Whether a run that loads the checkpoint of another run begins the curve again, from the base
  /// values of the saved schedule.
  bool begins_again = false;
};

/// The schedule whose curve the function `curve_of` returns for the options.
template <class CurveOptions>
class CurveOf final : public CurveScheduler {
 public:
  /// The options type of the constructor.
  using Options = CurveOptions;

  /// @throws OptionError if an option is out of range, or if options contradict each other; Error
  ///         if an expression has no valid value in this run.
  CurveOf(torch::optim::Optimizer& optimizer, const Options& options, const RunConfig& config)
      : CurveScheduler(optimizer, options.field), curve_(curve_of(options, config)) {
    for (const auto& [name, length] : curve_.lengths) add_length(name, length);
  }

  double value_at(int64_t update, double base) const override {
    return curve_.value(static_cast<double>(update), base);
  }
  StateDict continued(const StateDict& state) const override {
    if (!curve_.begins_again) return state;
    StateDict fresh = state_dict();
    fresh.set("num_updates", int64_t{0});
    fresh.set("base_values", state.at("base_values"));
    return fresh;
  }

 private:
  Curve curve_;
};

struct StepSchedulerOptions {
  /// Number of updates between two steps. Must be a whole number and at least 1.
  RunExpression step_size = placeholders::num_updates;
  /// Factor of each step. Must be positive.
  double gamma = 0.1;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(step_size, gamma, field);
};
/// Returns the curve of the options in this run.
LINKBOY_API Curve curve_of(const StepSchedulerOptions& options, const RunConfig& config);

/// Multiplies by gamma every step_size updates: f(n) = base * gamma^floor(n / step_size).
/// Equivalent to PyTorch's StepLR.
using StepScheduler = CurveOf<StepSchedulerOptions>;
/// Makes a StepScheduler.
inline constexpr SchedulerMaker<StepScheduler> step_decay{};

struct MultiStepSchedulerOptions {
  /// Numbers of updates after which the value is multiplied by `gamma`. Must be whole numbers, at
  /// least 1, and increasing. Must not be empty.
  Required<std::vector<RunExpression>> milestones;
  /// Factor at each milestone. Must be positive.
  double gamma = 0.1;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(milestones, gamma, field);
};
/// Returns the curve of the options in this run.
LINKBOY_API Curve curve_of(const MultiStepSchedulerOptions& options, const RunConfig& config);

/// Multiplies by gamma at each milestone: f(n) = base * gamma^k, where k is the number of
/// milestones that are at most n. Equivalent to PyTorch's MultiStepLR.
using MultiStepScheduler = CurveOf<MultiStepSchedulerOptions>;
/// Makes a MultiStepScheduler.
inline constexpr SchedulerMaker<MultiStepScheduler> multi_step{};

struct ConstantSchedulerOptions {
  /// Fraction of the base value in the first `num_updates` updates. Must be in [0, 1].
  double factor = 1.0 / 3;
  /// Number of updates that use `factor`. Must be a whole number and not negative.
  RunExpression num_updates = placeholders::num_updates;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(factor, num_updates, field);
};
/// Returns the curve of the options in this run.
LINKBOY_API Curve curve_of(const ConstantSchedulerOptions& options, const RunConfig& config);

/// The value is base * factor for the first `num_updates` updates, then base. Equivalent to
/// PyTorch's ConstantLR.
using ConstantScheduler = CurveOf<ConstantSchedulerOptions>;
/// Makes a ConstantScheduler.
inline constexpr SchedulerMaker<ConstantScheduler> constant{};

struct LinearSchedulerOptions {
  /// Fraction of the base value at the start. Must be in [0, 1].
  double start_factor = 1.0 / 3;
  /// Fraction of the base value at the end. Must be in [0, 1].
  double end_factor = 1.0;
  /// Number of updates from start to end. Must be a whole number and at least 1.
  RunExpression num_updates = placeholders::num_updates;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(start_factor, end_factor, num_updates, field);
};
/// Returns the curve of the options in this run.
LINKBOY_API Curve curve_of(const LinearSchedulerOptions& options, const RunConfig& config);

/// Changes linearly from base * start_factor at n = 0 to base * end_factor at n = num_updates, and
/// stays there. Equivalent to PyTorch's LinearLR.
using LinearScheduler = CurveOf<LinearSchedulerOptions>;
/// Makes a LinearScheduler. A function, because -Wshadow warns of enumerators with the name of an
/// object.
inline CreateSchedulerFn linear(LinearSchedulerOptions options = {}) {
  return scheduler_fn<LinearScheduler>(std::move(options));
}

struct ExponentialSchedulerOptions {
  /// Factor per update. Must be positive.
  Required<double> gamma;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(gamma, field);
};
/// Returns the curve of the options in this run.
LINKBOY_API Curve curve_of(const ExponentialSchedulerOptions& options, const RunConfig& config);

/// f(n) = base * gamma^n. Equivalent to PyTorch's ExponentialLR.
using ExponentialScheduler = CurveOf<ExponentialSchedulerOptions>;
/// Makes a ExponentialScheduler.
inline constexpr SchedulerMaker<ExponentialScheduler> exponential{};

struct PolynomialSchedulerOptions {
  /// Number of updates until the end. Must be a whole number and at least 1.
  RunExpression num_updates = placeholders::num_updates;
  /// Exponent of the curve; 1 is a straight line. Must be positive.
  double power = 1.0;
  /// The value at the end. Must not be negative.
  double min_lr = 0.0;
  /// Exponent of the progress. With values above 1, the value decays later. Must be positive.
  double k_decay = 1.0;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(num_updates, power, min_lr, k_decay, field);
};
/// Returns the curve of the options in this run.
LINKBOY_API Curve curve_of(const PolynomialSchedulerOptions& options, const RunConfig& config);

/// A polynomial decay. With N = num_updates, m = min_lr and k = k_decay:
///
///     f(n) = m + (base - m) * (1 - (n / N)^k)^power   n < N
///            m                                        otherwise
///
/// Covers PyTorch's PolynomialLR (m = 0, k = 1) and timm's PolyLRScheduler.
using PolynomialScheduler = CurveOf<PolynomialSchedulerOptions>;
/// Makes a PolynomialScheduler.
inline constexpr SchedulerMaker<PolynomialScheduler> polynomial{};

struct TanhSchedulerOptions {
  /// Number of updates until the end. Must be a whole number and at least 1.
  RunExpression num_updates = placeholders::num_updates;
  /// Argument of the hyperbolic tangent at the start. Must be less than `tanh_end`.
  double tanh_start = -7.0;
  /// Argument of the hyperbolic tangent at the end.
  double tanh_end = 3.0;
  /// The value at the end. Must not be negative.
  double min_lr = 0.0;
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(num_updates, tanh_start, tanh_end, min_lr, field);
};
/// Returns the curve of the options in this run.
LINKBOY_API Curve curve_of(const TanhSchedulerOptions& options, const RunConfig& config);

/// A decay along a hyperbolic tangent. With t = n / num_updates and m = min_lr:
///
///     f(n) = m + (base - m) / 2 * (1 - tanh(tanh_start * (1 - t) + tanh_end * t))   t < 1
///            m                                                                      otherwise
///
/// Equivalent to timm's TanhLRScheduler.
using TanhScheduler = CurveOf<TanhSchedulerOptions>;
/// Makes a TanhScheduler.
inline constexpr SchedulerMaker<TanhScheduler> tanh_decay{};

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
};
/// Returns the curve of the options in this run.
LINKBOY_API Curve curve_of(const CosineSchedulerOptions& options, const RunConfig& config);

/// Warms up linearly, decays along a half cosine, and stays at the minimum for the cool-down. There
/// are N updates in total, of which W are warm-up and C are cool-down. With the base value b, the
/// minimum m, w = warmup_start_lr and k = k_decay:
///
///     f(n) = w + n (b - w) / W                                          n < W
///            m + (b - m) / 2 * (1 + cos(pi (n - W)^k / (N - W - C)^k))   n < N - C
///            m                                                          otherwise
using CosineScheduler = CurveOf<CosineSchedulerOptions>;
/// Makes a CosineScheduler.
inline constexpr SchedulerMaker<CosineScheduler> cosine{};

/// Set `first_cycle_updates` or `num_cycles`, but not both. If neither is set, one cycle spans the
/// run.
struct CosineRestartsSchedulerOptions {
  /// Number of updates in the first cycle. Must be positive.
  std::optional<RunExpression> first_cycle_updates{};
  /// Number of cycles that together fill the run. Must be at least 1.
  std::optional<int64_t> num_cycles{};

  /// Length of each cycle relative to the previous cycle. Must be at least 1.
  double cycle_mult = 1.0;
  /// Peak of each cycle relative to the previous cycle. No peak is below `min_lr`. Must be
  /// positive.
  double cycle_decay = 1.0;
  /// Number of cycles after which the value stays at `min_lr`. If not set, the cycles continue.
  /// Must be at least 1.
  std::optional<int64_t> cycle_limit{};

  /// The lowest value, except in a warm-up. Must not be negative.
  double min_lr = 0.0;
  /// Exponent of the progress within a cycle. With values above 1, the value decays later. Must be
  /// positive.
  double k_decay = 1.0;

  /// Number of updates of linear warm-up from `warmup_start_lr` at the start of each cycle. Must
  /// not be negative, and must be less than `first_cycle_updates`.
  RunExpression warmup_updates = 0;
  /// The value of the first update of a warm-up. Must not be negative.
  double warmup_start_lr = 0.0;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(first_cycle_updates, num_cycles, cycle_mult, cycle_decay, cycle_limit, min_lr,
                 k_decay, warmup_updates, warmup_start_lr, field);
};
/// Returns the curve of the options in this run.
LINKBOY_API Curve curve_of(const CosineRestartsSchedulerOptions& options, const RunConfig& config);

/// A cosine schedule with restarts. Each cycle is a half cosine. Cycle i (from 0) has T updates, of
/// which W are warm-up. After t updates of the cycle, with m = min_lr, the peak
/// p = max(base * cycle_decay^i, m), w = warmup_start_lr and k = k_decay:
///
///     f = w + t (p - w) / W                                       t < W
///         m + (p - m) / 2 * (1 + cos(pi ((t - W) / (T - W))^k))   otherwise
///
/// Covers PyTorch's CosineAnnealingWarmRestarts and timm's CosineLRScheduler. timm warms up only
/// once, before the first cycle; use WarmupScheduler for that.
using CosineRestartsScheduler = CurveOf<CosineRestartsSchedulerOptions>;
/// Makes a CosineRestartsScheduler.
inline constexpr SchedulerMaker<CosineRestartsScheduler> cosine_restarts{};

struct InverseSqrtSchedulerOptions {
  /// Number of updates of linear warm-up. Must be a whole number, not negative, and at most the
  /// number of updates in the run.
  RunExpression warmup_updates = 0;
  /// The value of the first update of the warm-up. Must not be negative.
  double warmup_start_lr = 0.0;
  /// Number of updates after the warm-up until the value has fallen to 1 / sqrt(2) of the base
  /// value. Defaults to `warmup_updates`, or to a tenth of the run if there is no warm-up. Must be
  /// positive.
  std::optional<RunExpression> timescale{};
  ParamGroupField field = ParamGroupField::lr;
  LINKBOY_FIELDS(warmup_updates, warmup_start_lr, timescale, field);
};
/// Returns the curve of the options in this run.
LINKBOY_API Curve curve_of(const InverseSqrtSchedulerOptions& options, const RunConfig& config);

/// An inverse square root decay after a linear warm-up. With W = warmup_updates,
/// w = warmup_start_lr and S = timescale:
///
///     f(n) = w + n (base - w) / W              n < W
///            base / sqrt((n - W + S) / S)      otherwise
///
/// Equivalent to transformers' get_inverse_sqrt_schedule.
using InverseSqrtScheduler = CurveOf<InverseSqrtSchedulerOptions>;
/// Makes a InverseSqrtScheduler.
inline constexpr SchedulerMaker<InverseSqrtScheduler> inverse_sqrt{};

struct WsdSchedulerOptions {
  /// The curve of a decay. With t from 0 to 1 over the decay and m = min_lr_ratio, the fraction of
  /// the base value is:
  ///
  ///     sqrt      m + (1 - m) (1 - sqrt(t))
  ///     inverse   1 / (t / m + 1 - t)
  ///     linear    m + (1 - m) (1 - t)
  enum class Decay { sqrt, inverse, linear };
  friend LINKBOY_ENUM_NAMES(Decay, sqrt, inverse, linear);

  /// Total number of updates in the schedule. Must be a whole number and at least 1.
  RunExpression num_updates = placeholders::num_updates;
  /// Number of updates of linear warm-up. Must be a whole number and not negative.
  RunExpression warmup_updates = 0;
  /// The value of the first update of the warm-up. Must not be negative.
  double warmup_start_lr = 1e-6;

  /// The curve of each decay.
  Decay decay = Decay::sqrt;
  /// Fraction of each period in which the value decays. Must be above 0 and at most 1. A decay has
  /// at least 2 updates, unless the period has only 1. The first update of a decay uses the base
  /// value.
  double decay_phase_ratio = 0.1;
  /// The value at the end of a decay as a fraction of the base value. Must be in [0, 1]. Must be
  /// positive for `Decay::inverse`.
  double min_lr_ratio = 1e-6;

  /// Number of periods, each with a decay and a checkpoint at its end. Must be at least 1, and
  /// 2^(num_checkpoints - 1) must be at most `num_updates`.
  int64_t num_checkpoints = 1;
  /// If true, the run continues from the checkpoint of another run. `Trainer::load_checkpoint` then
  /// restores only the base values of the saved schedule (see `continued`), and the schedule starts
  /// from its beginning, without warm-up.
  bool is_continuation_from_checkpoint = false;

  ParamGroupField field = ParamGroupField::lr;

  LINKBOY_FIELDS(num_updates, warmup_updates, warmup_start_lr, decay, decay_phase_ratio,
                 min_lr_ratio, num_checkpoints, is_continuation_from_checkpoint, field);
};
/// Returns the curve of the options in this run.
LINKBOY_API Curve curve_of(const WsdSchedulerOptions& options, const RunConfig& config);

/// Warms up, stays at the base value, then decays. With several checkpoints, the last one is at the
/// end of the schedule, and each earlier one is halfway to the next: with 800 updates, 4
/// checkpoints are at 100, 200, 400 and 800. After each checkpoint except the last, the value
/// returns to the base value. The lengths are the warm-up and, for each period, the numbers of
/// updates before its decay and before its checkpoint: "decay 1", "checkpoint 1", "decay 2", ...
///
/// Based on pytorch-accelerated's WSDLrScheduler, whose checkpoints missed the end of the run.
using WsdScheduler = CurveOf<WsdSchedulerOptions>;
/// Makes a WsdScheduler.
inline constexpr SchedulerMaker<WsdScheduler> wsd{};

}  // namespace linkboy
