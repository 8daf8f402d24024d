#include "linkboy/schedulers/tanh_scheduler.hpp"

#include <cmath>

#include "linkboy/error.hpp"
#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

TanhScheduler::TanhScheduler(torch::optim::Optimizer& optimizer,
                             const TanhSchedulerOptions& options, const RunConfig& config)
    : CurveScheduler(optimizer, options.field), options_(options) {
  const OptionReader reader("tanh schedule", config);
  length_ = static_cast<double>(reader.count("num_updates", options.num_updates));
  reader.not_negative("min_lr", options.min_lr);
  LINKBOY_CHECK_OPTION(options.tanh_start < options.tanh_end, "the tanh schedule's tanh_start is ",
                       options.tanh_start, " and its tanh_end is ", options.tanh_end,
                       "; tanh_start must be less than tanh_end.");
}

double TanhScheduler::value_at(int64_t update, double base) const {
  const double progress = static_cast<double>(update) / length_;
  if (progress >= 1.0) return options_.min_lr;
  const double argument = options_.tanh_start * (1.0 - progress) + options_.tanh_end * progress;
  return options_.min_lr + 0.5 * (base - options_.min_lr) * (1.0 - std::tanh(argument));
}

std::vector<Scheduler::Length> TanhScheduler::lengths() const { return {{"num_updates", length_}}; }

}  // namespace linkboy
