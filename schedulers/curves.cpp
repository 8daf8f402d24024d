// The schedules that are one formula of the update, from step to warm-up-stable-decay. They share a
// file because each is only a function.

#include "linkboy/schedulers/curves.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "linkboy/error.hpp"
#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {
namespace {

double half_cosine(double from, double to, double progress) {
  return to + 0.5 * (from - to) * (1.0 + std::cos(std::numbers::pi * progress));
}

/// The cycles of cosine restarts, numbered from 0.
struct Cycles {
  double first;  // updates
  double ratio;  // of the length of a cycle to that of the one before

  /// Returns the number of updates before a cycle.
  double start_of(double cycle) const {
    if (ratio == 1.0) return first * cycle;
    return first * (std::pow(ratio, cycle) - 1.0) / (ratio - 1.0);
  }

  double at(double update) const {
    const double cycles = update / first;
    double cycle =
        std::floor(ratio == 1.0 ? cycles : std::log1p(cycles * (ratio - 1.0)) / std::log(ratio));
    // Correct a rounding error in the logarithm, which matters where a cycle begins.
    if (cycle > 0.0 && start_of(cycle) > update) --cycle;
    if (start_of(cycle + 1.0) <= update) ++cycle;
    return cycle;
  }
};

/// The updates of a decay in a warm-up-stable-decay schedule. The checkpoint is due after `end`
/// updates.
struct WsdDecay {
  double begin;
  double end;
};

/// Returns the value after a share `t` of a decay.
double decayed_value(const WsdSchedulerOptions& options, double base, double t) {
  const double minimum = options.min_lr_ratio;
  switch (options.decay) {
    case WsdSchedulerOptions::Decay::inverse:
      return base / (t / minimum + 1.0 - t);
    case WsdSchedulerOptions::Decay::linear:
      return base * (minimum + (1.0 - minimum) * (1.0 - t));
    case WsdSchedulerOptions::Decay::sqrt:
      break;
  }
  return base * (minimum + (1.0 - minimum) * (1.0 - std::sqrt(t)));
}

}  // namespace

Curve curve_of(const StepSchedulerOptions& options, const RunConfig& config) {
  const OptionReader reader("step schedule", config);
  const auto size = static_cast<double>(reader.count("step_size", options.step_size));
  reader.positive("gamma", options.gamma);
  return {{{"step_size", size}}, [size, gamma = options.gamma](double n, double base) {
            return base * std::pow(gamma, std::floor(n / size));
          }};
}

Curve curve_of(const MultiStepSchedulerOptions& options, const RunConfig& config) {
  const OptionReader reader("multi-step schedule", config);
  const std::vector<int64_t> milestones = reader.milestones(options.milestones);
  reader.positive("gamma", options.gamma);
  std::vector<Scheduler::Length> lengths;
  lengths.reserve(milestones.size());
  for (int64_t milestone : milestones) {
    lengths.emplace_back("milestone " + std::to_string(lengths.size() + 1), milestone);
  }
  return {std::move(lengths), [milestones, gamma = options.gamma](double n, double base) {
            const auto next =
                std::upper_bound(milestones.begin(), milestones.end(), static_cast<int64_t>(n));
            return base * std::pow(gamma, static_cast<double>(next - milestones.begin()));
          }};
}

Curve curve_of(const ConstantSchedulerOptions& options, const RunConfig& config) {
  const OptionReader reader("constant schedule", config);
  reader.in_range("factor", options.factor, 0.0, 1.0);
  const auto length =
      static_cast<double>(reader.count("num_updates", options.num_updates, /*minimum=*/0));
  return {{{"num_updates", length}}, [length, factor = options.factor](double n, double base) {
            return n < length ? base * factor : base;
          }};
}

Curve curve_of(const LinearSchedulerOptions& options, const RunConfig& config) {
  const OptionReader reader("linear schedule", config);
  reader.in_range("start_factor", options.start_factor, 0.0, 1.0);
  reader.in_range("end_factor", options.end_factor, 0.0, 1.0);
  const auto length = static_cast<double>(reader.count("num_updates", options.num_updates));
  return {{{"num_updates", length}},
          [length, start = options.start_factor, end = options.end_factor](double n, double base) {
            if (n >= length) return base * end;
            return base * (start + (end - start) * (n / length));
          }};
}

Curve curve_of(const ExponentialSchedulerOptions& options, const RunConfig& config) {
  OptionReader("exponential schedule", config).positive("gamma", options.gamma);
  return {{},
          [gamma = *options.gamma](double n, double base) { return base * std::pow(gamma, n); }};
}

Curve curve_of(const PolynomialSchedulerOptions& options, const RunConfig& config) {
  const OptionReader reader("polynomial schedule", config);
  const auto length = static_cast<double>(reader.count("num_updates", options.num_updates));
  reader.positive("power", options.power);
  reader.positive("k_decay", options.k_decay);
  reader.not_negative("min_lr", options.min_lr);
  return {
      {{"num_updates", length}}, [length, options](double n, double base) {
        if (n >= length) return options.min_lr;
        const double progress = std::pow(n, options.k_decay) / std::pow(length, options.k_decay);
        return options.min_lr + (base - options.min_lr) * std::pow(1.0 - progress, options.power);
      }};
}

Curve curve_of(const TanhSchedulerOptions& options, const RunConfig& config) {
  const OptionReader reader("tanh schedule", config);
  const auto length = static_cast<double>(reader.count("num_updates", options.num_updates));
  reader.not_negative("min_lr", options.min_lr);
  LINKBOY_CHECK_OPTION(options.tanh_start < options.tanh_end, "the tanh schedule's tanh_start is ",
                       options.tanh_start, " and its tanh_end is ", options.tanh_end,
                       "; tanh_start must be less than tanh_end.");
  return {{{"num_updates", length}}, [length, options](double n, double base) {
            const double t = n / length;
            if (t >= 1.0) return options.min_lr;
            const double argument = options.tanh_start * (1.0 - t) + options.tanh_end * t;
            return options.min_lr + 0.5 * (base - options.min_lr) * (1.0 - std::tanh(argument));
          }};
}

Curve curve_of(const CosineSchedulerOptions& options, const RunConfig& config) {
  const OptionReader reader("cosine schedule", config);
  const double total = reader.length("num_updates", options.num_updates, 1.0);
  const double warmup = reader.length("warmup_updates", options.warmup_updates);
  const double cooldown = reader.length("cooldown_updates", options.cooldown_updates);
  reader.not_negative("min_lr", options.min_lr);
  reader.not_negative("min_lr_ratio", options.min_lr_ratio.value_or(0.0));
  reader.not_negative("warmup_start_lr", options.warmup_start_lr);
  reader.not_negative("warmup_start_lr_ratio", options.warmup_start_lr_ratio.value_or(0.0));
  reader.positive("k_decay", options.k_decay);
  LINKBOY_CHECK_OPTION(warmup + cooldown < total, "the cosine schedule warms up for ", warmup,
                       " and cools down for ", cooldown, " of ", total,
                       " updates; together they must be shorter than the schedule.");
  return {{{"num_updates", total}, {"warmup_updates", warmup}, {"cooldown_updates", cooldown}},
          [total, warmup, cooldown, options](double n, double base) {
            const auto of = [base](const std::optional<double>& ratio, double value) {
              return ratio ? *ratio * base : value;
            };
            if (n < warmup) {
              const double start = of(options.warmup_start_lr_ratio, options.warmup_start_lr);
              return start + n * (base - start) / warmup;
            }
            const double minimum = of(options.min_lr_ratio, options.min_lr);
            if (n >= total - cooldown) return minimum;
            const double progress = std::pow(n - warmup, options.k_decay) /
                                    std::pow(total - warmup - cooldown, options.k_decay);
            return half_cosine(base, minimum, progress);
          }};
}

Curve curve_of(const CosineRestartsSchedulerOptions& options, const RunConfig& config) {
  const OptionReader reader("cosine-restarts schedule", config);
  const auto at_least_one = [](const char* name, auto value) {
    LINKBOY_CHECK_OPTION(value >= 1 && std::isfinite(static_cast<double>(value)),
                         "the cosine-restarts schedule's ", name, " is ", value,
                         "; it must be at least 1.");
  };
  LINKBOY_CHECK_OPTION(!options.first_cycle_updates || !options.num_cycles,
                       "the cosine-restarts schedule has both first_cycle_updates and num_cycles; "
                       "set only one of them.");
  at_least_one("num_cycles", options.num_cycles.value_or(1));
  at_least_one("cycle_limit", options.cycle_limit.value_or(1));
  at_least_one("cycle_mult", options.cycle_mult);
  reader.positive("cycle_decay", options.cycle_decay);
  reader.positive("k_decay", options.k_decay);
  reader.not_negative("min_lr", options.min_lr);
  reader.not_negative("warmup_start_lr", options.warmup_start_lr);

  Cycles cycles{.first = 1.0, .ratio = options.cycle_mult};
  const double all = cycles.start_of(static_cast<double>(options.num_cycles.value_or(1)));
  cycles.first = reader.length(
      "first_cycle_updates", options.first_cycle_updates.value_or(placeholders::num_updates / all));
  reader.positive("first_cycle_updates", cycles.first);
  const double warmup = reader.length("warmup_updates", options.warmup_updates);
  LINKBOY_CHECK_OPTION(warmup < cycles.first, "the cosine-restarts schedule warms up for ", warmup,
                       " updates of a cycle of ", cycles.first,
                       "; the warm-up must be shorter than a cycle.");
  return {{{"first_cycle_updates", cycles.first}, {"warmup_updates", warmup}},
          [cycles, warmup, options](double n, double base) {
            const double cycle = cycles.at(n);
            if (options.cycle_limit && cycle >= static_cast<double>(*options.cycle_limit)) {
              return options.min_lr;
            }
            const double t = n - cycles.start_of(cycle);
            const double length = cycles.first * std::pow(cycles.ratio, cycle);
            const double peak =
                std::max(base * std::pow(options.cycle_decay, cycle), options.min_lr);
            if (t < warmup) {
              return options.warmup_start_lr + t * (peak - options.warmup_start_lr) / warmup;
            }
            const double progress =
                std::pow(t - warmup, options.k_decay) / std::pow(length - warmup, options.k_decay);
            return half_cosine(peak, options.min_lr, progress);
          }};
}

Curve curve_of(const InverseSqrtSchedulerOptions& options, const RunConfig& config) {
  constexpr int64_t kDefaultShare = 10;
  const OptionReader reader("inverse-sqrt schedule", config);
  const int64_t count = reader.count("warmup_updates", options.warmup_updates, /*minimum=*/0);
  const auto warmup = static_cast<double>(count);
  reader.fits_run("warmup_updates", warmup);
  reader.not_negative("warmup_start_lr", options.warmup_start_lr);
  const RunExpression fallback =
      count > 0 ? RunExpression(count) : placeholders::num_updates / kDefaultShare;
  const double timescale = reader.length("timescale", options.timescale.value_or(fallback));
  reader.positive("timescale", timescale);
  return {{{"warmup_updates", warmup}, {"timescale", timescale}},
          [warmup, timescale, start = options.warmup_start_lr](double n, double base) {
            if (n < warmup) return start + n * (base - start) / warmup;
            return base / std::sqrt((n - warmup + timescale) / timescale);
          }};
}

Curve curve_of(const WsdSchedulerOptions& options, const RunConfig& config) {
  const OptionReader reader("wsd schedule", config);
  const int64_t total = reader.count("num_updates", options.num_updates);
  double warmup =
      static_cast<double>(reader.count("warmup_updates", options.warmup_updates, /*minimum=*/0));
  reader.not_negative("warmup_start_lr", options.warmup_start_lr);
  reader.in_range("decay_phase_ratio", options.decay_phase_ratio, 0.0, 1.0);
  reader.positive("decay_phase_ratio", options.decay_phase_ratio);
  reader.in_range("min_lr_ratio", options.min_lr_ratio, 0.0, 1.0);
  LINKBOY_CHECK_OPTION(
      options.decay != WsdSchedulerOptions::Decay::inverse || options.min_lr_ratio > 0.0,
      "the wsd schedule's min_lr_ratio is 0, which its inverse decay never reaches; set a positive "
      "value, or choose another decay.");
  constexpr int64_t kMaxCheckpoints = 62;
  const int64_t num = options.num_checkpoints;
  LINKBOY_CHECK_OPTION(
      num >= 1 && num <= kMaxCheckpoints && (total >> (num - 1)) >= 1,
      "the wsd schedule's num_checkpoints is ", num, " in ", total,
      " updates; it must be at least 1, and 2^(num_checkpoints - 1) must be at most the number of "
      "updates.");
  if (options.is_continuation_from_checkpoint) warmup = 0.0;

  std::vector<Scheduler::Length> lengths{{"warmup_updates", warmup}};
  std::vector<WsdDecay> decays;
  for (int64_t i = 0; i < num; ++i) {
    const auto end = static_cast<double>(total >> (num - 1 - i));
    const double period = end - (decays.empty() ? 0.0 : decays.back().end);
    // The first update of a decay uses the base value, so a decay of one update would have no
    // effect. The share is increased slightly, because 100 * 0.29 is less than 29 in floating
    // point.
    const double decay = std::max(std::floor(period * options.decay_phase_ratio * (1.0 + 1e-9)),
                                  std::min(2.0, period));
    decays.push_back({end - decay, end});
    lengths.emplace_back("decay " + std::to_string(i + 1), end - decay);
    lengths.emplace_back("checkpoint " + std::to_string(i + 1), end);
  }
  LINKBOY_CHECK_OPTION(warmup <= decays[0].begin, "the wsd schedule warms up for ", warmup,
                       " updates, but its first decay begins after ", decays[0].begin,
                       ". Make the warm-up or the decay shorter.");
  return {std::move(lengths),
          [warmup, decays, options](double n, double base) {
            if (n < warmup) {
              return options.warmup_start_lr + n / warmup * (base - options.warmup_start_lr);
            }
            const auto next = std::find_if(decays.begin(), decays.end() - 1,
                                           [n](const WsdDecay& decay) { return n < decay.end; });
            if (n < next->begin || next->begin == next->end) return base;
            return decayed_value(options, base,
                                 std::min(1.0, (n - next->begin) / (next->end - next->begin)));
          },
          options.is_continuation_from_checkpoint};
}

}  // namespace linkboy
