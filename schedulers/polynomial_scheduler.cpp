#include "linkboy/schedulers/polynomial_scheduler.hpp"

#include <cmath>

#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

PolynomialScheduler::PolynomialScheduler(torch::optim::Optimizer& optimizer,
                                         const PolynomialSchedulerOptions& options,
                                         const RunConfig& config)
    : CurveScheduler(optimizer, options.field), options_(options) {
  const OptionReader reader("polynomial schedule", config);
  total_iters_ = static_cast<double>(reader.count("total_iters", options.total_iters));
  reader.positive("power", options.power);
  reader.positive("k_decay", options.k_decay);
  reader.not_negative("lr_min", options.lr_min);
}

double PolynomialScheduler::value_at(int64_t update, double base) const {
  const auto n = static_cast<double>(update);
  if (n >= total_iters_) return options_.lr_min;
  const double progress = std::pow(n, options_.k_decay) / std::pow(total_iters_, options_.k_decay);
  return options_.lr_min + (base - options_.lr_min) * std::pow(1.0 - progress, options_.power);
}

std::vector<Scheduler::Length> PolynomialScheduler::lengths() const {
  return {{"total_iters", total_iters_}};
}

}  // namespace linkboy
