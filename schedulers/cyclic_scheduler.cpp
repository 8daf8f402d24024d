// A triangular wave between two learning rates. The momentum falls while the learning rate rises.

#include "linkboy/schedulers/cyclic_scheduler.hpp"

#include <cmath>

#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

CyclicScheduler::CyclicScheduler(torch::optim::Optimizer& optimizer,
                                 const CyclicSchedulerOptions& options, const RunConfig& config)
    : Scheduler(optimizer, options.field,
                momentum_beside(options.field, options.cycle_momentum, "cyclic schedule")),
      options_(options) {
  const OptionReader reader("cyclic schedule", config);
  const std::size_t num_groups = base_values().size();
  step_size_up_ = reader.length("step_size_up", options.step_size_up);
  step_size_down_ =
      reader.length("step_size_down", options.step_size_down.value_or(options.step_size_up));
  reader.positive("step_size_up", step_size_up_);
  reader.positive("step_size_down", step_size_down_);
  reader.positive("gamma", options.gamma);
  if (options.base_lr) reader.not_negative("base_lr", *options.base_lr, num_groups);
  if (options.max_lr) reader.not_negative("max_lr", *options.max_lr, num_groups);
  reader.not_negative("base_momentum", options.base_momentum, num_groups);
  reader.not_negative("max_momentum", options.max_momentum, num_groups);
}

double CyclicScheduler::height_at(int64_t update) const {
  using Mode = CyclicSchedulerOptions::Mode;
  const auto n = static_cast<double>(update);
  const double total = step_size_up_ + step_size_down_;
  const double ratio_up = step_size_up_ / total;
  const double cycle = std::floor(1.0 + n / total);
  const double x = 1.0 + n / total - cycle;
  const double height = x <= ratio_up ? x / ratio_up : (x - 1.0) / (ratio_up - 1.0);
  if (options_.scale_fn) {
    const bool by_cycle = options_.scale_mode == CyclicSchedulerOptions::ScaleMode::cycle;
    return height * options_.scale_fn(by_cycle ? cycle : n);
  }
  if (options_.mode == Mode::triangular2) return height / std::pow(2.0, cycle - 1.0);
  if (options_.mode == Mode::exp_range) return height * std::pow(options_.gamma, n);
  return height;
}

std::vector<double> CyclicScheduler::values_at(int64_t update) const {
  constexpr double kBaseShare = 0.1;
  const double height = height_at(update);
  std::vector<double> values;
  values.reserve(base_values().size());
  for (std::size_t group = 0; group < base_values().size(); ++group) {
    if (stays_zero(base_values()[group])) {
      values.push_back(0.0);
      continue;
    }
    const double upper =
        options_.max_lr ? options_.max_lr->at(group, "max_lr") : base_values()[group];
    const double lower =
        options_.base_lr ? options_.base_lr->at(group, "base_lr") : kBaseShare * upper;
    values.push_back(lower + (upper - lower) * height);
  }
  return values;
}

std::vector<FieldValues> CyclicScheduler::other_values_at(int64_t update) const {
  if (!options_.cycle_momentum) return {};
  const double height = height_at(update);
  FieldValues momentum{ParamGroupField::momentum, {}};
  momentum.values.reserve(base_values().size());
  for (std::size_t group = 0; group < base_values().size(); ++group) {
    const double upper = options_.max_momentum.at(group, "max_momentum");
    const double lower = options_.base_momentum.at(group, "base_momentum");
    momentum.values.push_back(upper - (upper - lower) * height);
  }
  return {std::move(momentum)};
}

std::vector<Scheduler::Length> CyclicScheduler::lengths() const {
  return {{"step_size_up", step_size_up_}, {"step_size_down", step_size_down_}};
}

}  // namespace linkboy
