#include "linkboy/schedulers/exponential_scheduler.hpp"

#include <cmath>

#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

ExponentialScheduler::ExponentialScheduler(torch::optim::Optimizer& optimizer,
                                           const ExponentialSchedulerOptions& options,
                                           const RunConfig& config)
    : CurveScheduler(optimizer, options.field), gamma_(options.gamma) {
  OptionReader("exponential schedule", config).positive("gamma", gamma_);
}

double ExponentialScheduler::value_at(int64_t update, double base) const {
  return base * std::pow(gamma_, static_cast<double>(update));
}

}  // namespace linkboy
