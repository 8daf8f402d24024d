#include "linkboy/schedulers/multi_step_scheduler.hpp"

#include <algorithm>
#include <cmath>

#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

MultiStepScheduler::MultiStepScheduler(torch::optim::Optimizer& optimizer,
                                       const MultiStepSchedulerOptions& options,
                                       const RunConfig& config)
    : CurveScheduler(optimizer, options.field), gamma_(options.gamma) {
  const OptionReader reader("multi-step schedule", config);
  milestones_ = reader.milestones(options.milestones);
  reader.positive("gamma", gamma_);
}

double MultiStepScheduler::value_at(int64_t update, double base) const {
  const auto next = std::upper_bound(milestones_.begin(), milestones_.end(), update);
  return base * std::pow(gamma_, static_cast<double>(next - milestones_.begin()));
}

std::vector<Scheduler::Length> MultiStepScheduler::lengths() const {
  std::vector<Length> lengths;
  for (int64_t milestone : milestones_) {
    lengths.emplace_back("milestone " + std::to_string(lengths.size() + 1), milestone);
  }
  return lengths;
}

}  // namespace linkboy
