// Divides the updates into periods with a constant value and a decay, each for one checkpoint.

#include "linkboy/schedulers/wsd_scheduler.hpp"

#include <algorithm>
#include <cmath>

#include "linkboy/error.hpp"
#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

WsdScheduler::WsdScheduler(torch::optim::Optimizer& optimizer, const WsdSchedulerOptions& options,
                           const RunConfig& config)
    : CurveScheduler(optimizer, options.field), options_(options) {
  const OptionReader reader("wsd schedule", config);
  const int64_t total = reader.count("num_updates", options.num_updates);
  warmup_ = reader.count("warmup_updates", options.warmup_updates, /*minimum=*/0);
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
  if (options.is_continuation_from_checkpoint) warmup_ = 0;

  for (int64_t i = 0; i < num; ++i) {
    const int64_t begin = periods_.empty() ? 0 : periods_.back().end;
    const int64_t end = total >> (num - 1 - i);
    // The first update of a decay uses the base value, so a decay of one update would have no
    // effect. The share is increased slightly, because 100 * 0.29 is less than 29 in floating
    // point.
    const double share = static_cast<double>(end - begin) * options.decay_phase_ratio;
    const auto decay = std::max(static_cast<int64_t>(std::floor(share * (1.0 + 1e-9))),
                                std::min<int64_t>(2, end - begin));
    periods_.push_back({begin, end - decay, end});
  }
  LINKBOY_CHECK_OPTION(warmup_ <= periods_[0].decay_begin, "the wsd schedule warms up for ",
                       warmup_, " updates, but its first decay begins after ",
                       periods_[0].decay_begin, ". Make the warm-up or the decay shorter.");
}

const WsdScheduler::Period& WsdScheduler::period_at(int64_t update) const {
  for (const Period& period : periods_) {
    if (update < period.end) return period;
  }
  return periods_.back();
}

double WsdScheduler::value_at(int64_t update, double base) const {
  if (update < warmup_) {
    return options_.warmup_start_lr + static_cast<double>(update) / static_cast<double>(warmup_) *
                                          (base - options_.warmup_start_lr);
  }
  const Period& period = period_at(update);
  if (update < period.decay_begin || period.decay_begin == period.end) return base;
  const double t = std::min(1.0, static_cast<double>(update - period.decay_begin) /
                                     static_cast<double>(period.end - period.decay_begin));
  const double minimum = options_.min_lr_ratio;
  switch (options_.decay) {
    case WsdSchedulerOptions::Decay::inverse:
      return base / (t / minimum + 1.0 - t);
    case WsdSchedulerOptions::Decay::linear:
      return base * (minimum + (1.0 - minimum) * (1.0 - t));
    case WsdSchedulerOptions::Decay::sqrt:
      break;
  }
  return base * (minimum + (1.0 - minimum) * (1.0 - std::sqrt(t)));
}

std::vector<int64_t> WsdScheduler::checkpoint_updates() const {
  std::vector<int64_t> updates;
  for (const Period& period : periods_) updates.push_back(period.end);
  return updates;
}

std::vector<Scheduler::Length> WsdScheduler::lengths() const {
  std::vector<Length> lengths{{"warmup_updates", static_cast<double>(warmup_)}};
  for (const Period& period : periods_) {
    const std::string number = std::to_string(lengths.size() / 2 + 1);
    lengths.emplace_back("decay " + number, static_cast<double>(period.decay_begin));
    lengths.emplace_back("checkpoint " + number, static_cast<double>(period.end));
  }
  return lengths;
}

StateDict WsdScheduler::continued(const StateDict& state) const {
  if (!options_.is_continuation_from_checkpoint) return state;
  StateDict fresh = state_dict();
  fresh.set("num_updates", int64_t{0});
  fresh.set("base_values", state.at("base_values"));
  return fresh;
}

}  // namespace linkboy
