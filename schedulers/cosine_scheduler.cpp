#include "linkboy/schedulers/cosine_scheduler.hpp"

#include <cmath>
#include <numbers>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

void check_not_negative(const char* name, double value) {
  LINKBOY_CHECK(value >= 0.0, "the cosine schedule's ", name, " is ", value,
                "; it must not be negative.");
}

}  // namespace

CosineScheduler::CosineScheduler(torch::optim::Optimizer& optimizer,
                                 const CosineSchedulerOptions& options, Lengths lengths)
    : Scheduler(optimizer, options.field), options_(options), lengths_(lengths) {
  check_not_negative("warm-up", lengths.warmup);
  check_not_negative("cool-down", lengths.cooldown);
  check_not_negative("lr_min", options.lr_min);
  check_not_negative("min_lr_ratio", options.min_lr_ratio.value_or(0.0));
  check_not_negative("warmup_starting_lr", options.warmup_starting_lr);
  check_not_negative("warmup_starting_lr_ratio", options.warmup_starting_lr_ratio.value_or(0.0));
  LINKBOY_CHECK(options.k_decay > 0.0, "the cosine schedule's k_decay is ", options.k_decay,
                "; it must be positive. 1 is the plain cosine.");
  LINKBOY_CHECK(lengths.warmup + lengths.cooldown < lengths.total,
                "the cosine schedule warms up "
                "for ",
                lengths.warmup, " and cools down for ", lengths.cooldown, " of ", lengths.total,
                " updates; something must be left between them. Make them shorter.");
}

CreateSchedulerFn CosineScheduler::create_scheduler_fn(CosineSchedulerOptions options) {
  return [options = std::move(options)](torch::optim::Optimizer& optimizer,
                                        const RunConfig& config) -> std::unique_ptr<Scheduler> {
    auto in_updates = [&](const RunValue& epochs) {
      return (epochs * options.num_update_steps_per_epoch).resolve(config);
    };
    return std::make_unique<CosineScheduler>(
        optimizer, options,
        Lengths{.total = in_updates(options.num_epochs),
                .warmup = in_updates(options.num_warmup_epochs),
                .cooldown = in_updates(options.num_cooldown_epochs)});
  };
}

std::vector<double> CosineScheduler::values_at(int64_t update) const {
  std::vector<double> values;
  values.reserve(base_values().size());
  for (double base : base_values()) values.push_back(value_at(static_cast<double>(update), base));
  return values;
}

double CosineScheduler::value_at(double update, double base) const {
  const double minimum = options_.min_lr_ratio ? *options_.min_lr_ratio * base : options_.lr_min;
  if (update < lengths_.warmup) {
    const double start = options_.warmup_starting_lr_ratio
                             ? *options_.warmup_starting_lr_ratio * base
                             : options_.warmup_starting_lr;
    return start + update * (base - start) / lengths_.warmup;
  }
  if (update >= lengths_.total - lengths_.cooldown) return minimum;
  const double progress =
      std::pow(update - lengths_.warmup, options_.k_decay) /
      std::pow(lengths_.total - lengths_.warmup - lengths_.cooldown, options_.k_decay);
  return minimum + 0.5 * (base - minimum) * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace linkboy
