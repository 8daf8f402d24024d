#include "linkboy/schedulers/polynomial_scheduler.hpp"

#include <cmath>

#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

PolynomialScheduler::PolynomialScheduler(torch::optim::Optimizer& optimizer,
                                         const PolynomialSchedulerOptions& options,
                                         const RunConfig& config)
    : CurveScheduler(optimizer, options.field), options_(options) {
  const OptionReader reader("polynomial schedule", config);
  length_ = static_cast<double>(reader.count("num_updates", options.num_updates));
  reader.positive("power", options.power);
  reader.positive("k_decay", options.k_decay);
  reader.not_negative("min_lr", options.min_lr);
}

double PolynomialScheduler::value_at(int64_t update, double base) const {
  const auto n = static_cast<double>(update);
  if (n >= length_) return options_.min_lr;
  const double progress = std::pow(n, options_.k_decay) / std::pow(length_, options_.k_decay);
  return options_.min_lr + (base - options_.min_lr) * std::pow(1.0 - progress, options_.power);
}

std::vector<Scheduler::Length> PolynomialScheduler::lengths() const {
  return {{"num_updates", length_}};
}

}  // namespace linkboy
