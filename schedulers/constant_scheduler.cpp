#include "linkboy/schedulers/constant_scheduler.hpp"

#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

ConstantScheduler::ConstantScheduler(torch::optim::Optimizer& optimizer,
                                     const ConstantSchedulerOptions& options,
                                     const RunConfig& config)
    : CurveScheduler(optimizer, options.field), factor_(options.factor) {
  const OptionReader reader("constant schedule", config);
  reader.in_range("factor", factor_, 0.0, 1.0);
  total_iters_ = reader.count("total_iters", options.total_iters, /*minimum=*/0);
}

double ConstantScheduler::value_at(int64_t update, double base) const {
  return update < total_iters_ ? base * factor_ : base;
}

std::vector<Scheduler::Length> ConstantScheduler::lengths() const {
  return {{"total_iters", static_cast<double>(total_iters_)}};
}

}  // namespace linkboy
