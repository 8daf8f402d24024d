#include "linkboy/schedulers/tanh_scheduler.hpp"

#include <cmath>

#include "linkboy/error.hpp"
#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

TanhScheduler::TanhScheduler(torch::optim::Optimizer& optimizer,
                             const TanhSchedulerOptions& options, const RunConfig& config)
    : CurveScheduler(optimizer, options.field), options_(options) {
  const OptionReader reader("tanh schedule", config);
  t_initial_ = static_cast<double>(reader.count("t_initial", options.t_initial));
  reader.not_negative("lr_min", options.lr_min);
  LINKBOY_CHECK_OPTION(options.lb < options.ub, "the tanh schedule's lb is ", options.lb,
                       " and its ub is ", options.ub, "; lb must be less than ub.");
}

double TanhScheduler::value_at(int64_t update, double base) const {
  const double progress = static_cast<double>(update) / t_initial_;
  if (progress >= 1.0) return options_.lr_min;
  const double argument = options_.lb * (1.0 - progress) + options_.ub * progress;
  return options_.lr_min + 0.5 * (base - options_.lr_min) * (1.0 - std::tanh(argument));
}

std::vector<Scheduler::Length> TanhScheduler::lengths() const {
  return {{"t_initial", t_initial_}};
}

}  // namespace linkboy
