#include "linkboy/schedulers/linear_scheduler.hpp"

#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

LinearScheduler::LinearScheduler(torch::optim::Optimizer& optimizer,
                                 const LinearSchedulerOptions& options, const RunConfig& config)
    : CurveScheduler(optimizer, options.field),
      start_factor_(options.start_factor),
      end_factor_(options.end_factor) {
  const OptionReader reader("linear schedule", config);
  reader.in_range("start_factor", start_factor_, 0.0, 1.0);
  reader.in_range("end_factor", end_factor_, 0.0, 1.0);
  length_ = reader.count("num_updates", options.num_updates);
}

double LinearScheduler::value_at(int64_t update, double base) const {
  if (update >= length_) return base * end_factor_;
  const double progress = static_cast<double>(update) / static_cast<double>(length_);
  return base * (start_factor_ + (end_factor_ - start_factor_) * progress);
}

std::vector<Scheduler::Length> LinearScheduler::lengths() const {
  return {{"num_updates", static_cast<double>(length_)}};
}

}  // namespace linkboy
