#include "linkboy/schedulers/inverse_sqrt_scheduler.hpp"

#include <cmath>

#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

InverseSqrtScheduler::InverseSqrtScheduler(torch::optim::Optimizer& optimizer,
                                           const InverseSqrtSchedulerOptions& options,
                                           const RunConfig& config)
    : CurveScheduler(optimizer, options.field), warmup_start_lr_(options.warmup_start_lr) {
  constexpr int64_t kDefaultShare = 10;
  const OptionReader reader("inverse-sqrt schedule", config);
  warmup_ = reader.count("warmup_updates", options.warmup_updates, /*minimum=*/0);
  reader.fits_run("warmup_updates", static_cast<double>(warmup_));
  reader.not_negative("warmup_start_lr", warmup_start_lr_);
  const RunExpression fallback =
      warmup_ > 0 ? RunExpression(warmup_) : placeholders::num_updates / kDefaultShare;
  timescale_ = reader.length("timescale", options.timescale.value_or(fallback));
  reader.positive("timescale", timescale_);
}

double InverseSqrtScheduler::value_at(int64_t update, double base) const {
  if (update < warmup_) {
    return warmup_start_lr_ +
           static_cast<double>(update) * (base - warmup_start_lr_) / static_cast<double>(warmup_);
  }
  return base / std::sqrt((static_cast<double>(update - warmup_) + timescale_) / timescale_);
}

std::vector<Scheduler::Length> InverseSqrtScheduler::lengths() const {
  return {{"warmup_updates", static_cast<double>(warmup_)}, {"timescale", timescale_}};
}

}  // namespace linkboy
