#include "linkboy/schedulers/step_scheduler.hpp"

#include <cmath>

#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

StepScheduler::StepScheduler(torch::optim::Optimizer& optimizer,
                             const StepSchedulerOptions& options, const RunConfig& config)
    : CurveScheduler(optimizer, options.field), gamma_(options.gamma) {
  const OptionReader reader("step schedule", config);
  step_size_ = reader.count("step_size", options.step_size);
  reader.positive("gamma", gamma_);
}

double StepScheduler::value_at(int64_t update, double base) const {
  const int64_t num_steps = update / step_size_;
  return base * std::pow(gamma_, static_cast<double>(num_steps));
}

std::vector<Scheduler::Length> StepScheduler::lengths() const {
  return {{"step_size", static_cast<double>(step_size_)}};
}

}  // namespace linkboy
