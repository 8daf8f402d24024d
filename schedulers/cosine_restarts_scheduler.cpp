#include "linkboy/schedulers/cosine_restarts_scheduler.hpp"

#include <cmath>
#include <numbers>

#include "linkboy/error.hpp"
#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

CosineRestartsScheduler::CosineRestartsScheduler(torch::optim::Optimizer& optimizer,
                                                 const CosineRestartsSchedulerOptions& options,
                                                 const RunConfig& config)
    : CurveScheduler(optimizer, options.field), options_(options), first_cycle_(1.0) {
  const OptionReader reader("cosine-restarts schedule", config);
  LINKBOY_CHECK_OPTION(!options.first_cycle_updates || !options.num_cycles,
                       "the cosine-restarts schedule has both first_cycle_updates and num_cycles; "
                       "set only one of them.");
  LINKBOY_CHECK_OPTION(options.num_cycles.value_or(1) >= 1,
                       "the cosine-restarts schedule's num_cycles is ", *options.num_cycles,
                       "; it must be at least 1.");
  LINKBOY_CHECK_OPTION(options.cycle_limit.value_or(1) >= 1,
                       "the cosine-restarts schedule's cycle_limit is ", *options.cycle_limit,
                       "; it must be at least 1.");
  LINKBOY_CHECK_OPTION(std::isfinite(options.cycle_mult) && options.cycle_mult >= 1.0,
                       "the cosine-restarts schedule's cycle_mult is ", options.cycle_mult,
                       "; it must be at least 1.");
  reader.positive("cycle_decay", options.cycle_decay);
  reader.positive("k_decay", options.k_decay);
  reader.not_negative("min_lr", options.min_lr);
  reader.not_negative("warmup_start_lr", options.warmup_start_lr);

  const double all_cycles = cycle_start(static_cast<double>(options.num_cycles.value_or(1)));
  const RunExpression first =
      options.first_cycle_updates.value_or(placeholders::num_updates / all_cycles);
  first_cycle_ = reader.length("first_cycle_updates", first);
  reader.positive("first_cycle_updates", first_cycle_);
  warmup_ = reader.length("warmup_updates", options.warmup_updates);
  LINKBOY_CHECK_OPTION(warmup_ < first_cycle_, "the cosine-restarts schedule warms up for ",
                       warmup_, " updates of a cycle of ", first_cycle_,
                       "; the warm-up must be shorter than a cycle.");
}

/// Returns the number of updates before a cycle.
double CosineRestartsScheduler::cycle_start(double cycle) const {
  const double ratio = options_.cycle_mult;
  if (ratio == 1.0) return first_cycle_ * cycle;
  return first_cycle_ * (std::pow(ratio, cycle) - 1.0) / (ratio - 1.0);
}

double CosineRestartsScheduler::cycle_of(double update) const {
  const double ratio = options_.cycle_mult;
  const double cycles = update / first_cycle_;
  double cycle =
      std::floor(ratio == 1.0 ? cycles : std::log1p(cycles * (ratio - 1.0)) / std::log(ratio));
  // Correct a rounding error in the logarithm, which matters where a cycle begins.
  if (cycle > 0.0 && cycle_start(cycle) > update) --cycle;
  if (cycle_start(cycle + 1.0) <= update) ++cycle;
  return cycle;
}

double CosineRestartsScheduler::value_at(int64_t update, double base) const {
  const auto n = static_cast<double>(update);
  const double cycle = cycle_of(n);
  if (options_.cycle_limit && cycle >= static_cast<double>(*options_.cycle_limit)) {
    return options_.min_lr;
  }
  const double t = n - cycle_start(cycle);
  const double length = first_cycle_ * std::pow(options_.cycle_mult, cycle);
  const double peak = base * std::pow(options_.cycle_decay, cycle);
  if (t < warmup_) {
    return options_.warmup_start_lr + t * (peak - options_.warmup_start_lr) / warmup_;
  }
  const double progress =
      std::pow(t - warmup_, options_.k_decay) / std::pow(length - warmup_, options_.k_decay);
  return options_.min_lr +
         0.5 * (peak - options_.min_lr) * (1.0 + std::cos(std::numbers::pi * progress));
}

std::vector<Scheduler::Length> CosineRestartsScheduler::lengths() const {
  return {{"first_cycle_updates", first_cycle_}, {"warmup_updates", warmup_}};
}

}  // namespace linkboy
