#include "linkboy/schedulers/cosine_scheduler.hpp"

#include <cmath>
#include <numbers>

#include "linkboy/error.hpp"
#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

CosineScheduler::CosineScheduler(torch::optim::Optimizer& optimizer,
                                 const CosineSchedulerOptions& options, const RunConfig& config)
    : CurveScheduler(optimizer, options.field), options_(options) {
  const OptionReader reader("cosine schedule", config);
  total_ = reader.length("num_updates", options.num_updates, 1.0);
  warmup_ = reader.length("warmup_updates", options.warmup_updates);
  cooldown_ = reader.length("cooldown_updates", options.cooldown_updates);
  reader.not_negative("min_lr", options.min_lr);
  reader.not_negative("min_lr_ratio", options.min_lr_ratio.value_or(0.0));
  reader.not_negative("warmup_start_lr", options.warmup_start_lr);
  reader.not_negative("warmup_start_lr_ratio", options.warmup_start_lr_ratio.value_or(0.0));
  reader.positive("k_decay", options.k_decay);
  LINKBOY_CHECK_OPTION(warmup_ + cooldown_ < total_, "the cosine schedule warms up for ", warmup_,
                       " and cools down for ", cooldown_, " of ", total_,
                       " updates; together they must be shorter than the schedule.");
}

double CosineScheduler::value_at(int64_t update, double base) const {
  const auto n = static_cast<double>(update);
  const double minimum = options_.min_lr_ratio ? *options_.min_lr_ratio * base : options_.min_lr;
  if (n < warmup_) {
    const double start = options_.warmup_start_lr_ratio ? *options_.warmup_start_lr_ratio * base
                                                        : options_.warmup_start_lr;
    return start + n * (base - start) / warmup_;
  }
  if (n >= total_ - cooldown_) return minimum;
  const double progress = std::pow(n - warmup_, options_.k_decay) /
                          std::pow(total_ - warmup_ - cooldown_, options_.k_decay);
  return minimum + 0.5 * (base - minimum) * (1.0 + std::cos(std::numbers::pi * progress));
}

std::vector<Scheduler::Length> CosineScheduler::lengths() const {
  return {{"num_updates", total_}, {"warmup_updates", warmup_}, {"cooldown_updates", cooldown_}};
}

}  // namespace linkboy
