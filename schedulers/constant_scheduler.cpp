#include "linkboy/schedulers/constant_scheduler.hpp"

#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

ConstantScheduler::ConstantScheduler(torch::optim::Optimizer& optimizer,
                                     const ConstantSchedulerOptions& options,
                                     const RunConfig& config)
    : CurveScheduler(optimizer, options.field), factor_(options.factor) {
  const OptionReader reader("constant schedule", config);
  reader.in_range("factor", factor_, 0.0, 1.0);
  length_ = reader.count("num_updates", options.num_updates, /*minimum=*/0);
}

double ConstantScheduler::value_at(int64_t update, double base) const {
  return update < length_ ? base * factor_ : base;
}

std::vector<Scheduler::Length> ConstantScheduler::lengths() const {
  return {{"num_updates", static_cast<double>(length_)}};
}

}  // namespace linkboy
