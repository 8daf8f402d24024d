// Rises to the value of another schedule, which begins together with the warm-up or after it.

#include "linkboy/schedulers/warmup_scheduler.hpp"

#include <algorithm>
#include <cmath>

#include "linkboy/run/run_config.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {
namespace {

double resolve_warmup(const WarmupSchedulerOptions& options, const RunConfig& config) {
  const OptionReader reader("warm-up schedule", config);
  const double warmup = reader.length("warmup_updates", options.warmup_updates);
  reader.fits_run("warmup_updates", warmup);
  reader.not_negative("warmup_start_lr", options.warmup_start_lr);
  return warmup;
}

std::vector<std::unique_ptr<Scheduler>> make_inner(torch::optim::Optimizer& optimizer,
                                                   const WarmupSchedulerOptions& options,
                                                   const RunConfig& config) {
  const auto warmup = static_cast<int64_t>(std::ceil(resolve_warmup(options, config)));
  const bool is_shorter = options.warmup_prefix && config.max_num_updates > 0;
  const RunConfig rest =
      is_shorter ? part_of_run(config, std::max<int64_t>(1, config.max_num_updates - warmup))
                 : config;
  const CreateSchedulerFn base_values = constant({.factor = 1.0});
  return make_parts(optimizer, {options.scheduler ? options.scheduler : base_values}, {rest});
}

}  // namespace

WarmupScheduler::WarmupScheduler(torch::optim::Optimizer& optimizer,
                                 const WarmupSchedulerOptions& options, const RunConfig& config)
    : CompositeScheduler(optimizer, make_inner(optimizer, options, config)),
      warmup_(resolve_warmup(options, config)),
      warmup_start_lr_(options.warmup_start_lr),
      is_prefix_(options.warmup_prefix) {}

/// Returns the update of the inner schedule; during the warm-up, the one at its end.
int64_t WarmupScheduler::inner_update(int64_t update) const {
  const auto end = static_cast<int64_t>(std::ceil(warmup_));
  return std::max(update, end) - (is_prefix_ ? end : 0);
}

std::vector<double> WarmupScheduler::values_at(int64_t update) const {
  std::vector<double> values = part_values(0, inner_update(update));
  const auto n = static_cast<double>(update);
  if (n >= warmup_) return values;
  for (std::size_t group = 0; group < values.size(); ++group) {
    if (stays_zero(base_values()[group])) continue;
    values[group] = warmup_start_lr_ + n * (values[group] - warmup_start_lr_) / warmup_;
  }
  return values;
}

bool WarmupScheduler::has_turn(std::size_t /*part*/, int64_t update) const {
  return static_cast<double>(update) >= warmup_;
}

std::vector<FieldValues> WarmupScheduler::other_values_at(int64_t update) const {
  return other_part_values(0, inner_update(update));
}

std::vector<Scheduler::Length> WarmupScheduler::lengths() const {
  std::vector<Length> lengths = CompositeScheduler::lengths();
  lengths.emplace_back("warmup_updates", warmup_);
  return lengths;
}

}  // namespace linkboy
