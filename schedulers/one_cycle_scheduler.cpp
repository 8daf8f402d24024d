// A rise and a fall between three levels (start, peak and end), each along a half cosine or a line.

#include "linkboy/schedulers/one_cycle_scheduler.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {

OneCycleScheduler::OneCycleScheduler(torch::optim::Optimizer& optimizer,
                                     const OneCycleSchedulerOptions& options,
                                     const RunConfig& config)
    : Scheduler(optimizer, options.field,
                momentum_beside(options.field, options.cycle_momentum, "one-cycle schedule")),
      options_(options) {
  const OptionReader reader("one-cycle schedule", config);
  const std::size_t num_groups = base_values().size();
  length_ = reader.count("num_updates", options.num_updates);
  reader.in_range("pct_start", options.pct_start, 0.0, options.three_phase ? 0.5 : 1.0);
  reader.positive("div_factor", options.div_factor);
  reader.positive("final_div_factor", options.final_div_factor);
  if (options.max_lr) reader.not_negative("max_lr", *options.max_lr, num_groups);
  reader.not_negative("base_momentum", options.base_momentum, num_groups);
  reader.not_negative("max_momentum", options.max_momentum, num_groups);
}

OneCycleScheduler::Place OneCycleScheduler::place_of(int64_t update) const {
  const auto n = static_cast<double>(std::min(update, length_ - 1));
  const auto total = static_cast<double>(length_);
  const double peak = options_.pct_start * total - 1.0;
  const double last = total - 1.0;
  auto place = [&](Level from, Level to, double begin, double end) {
    return Place{from, to, end > begin ? (n - begin) / (end - begin) : 1.0};
  };
  if (n <= peak) return place(Level::start, Level::peak, 0.0, peak);
  if (!options_.three_phase) return place(Level::peak, Level::end, peak, last);
  const double down = 2.0 * options_.pct_start * total - 2.0;
  if (n <= down) return place(Level::peak, Level::start, peak, down);
  return place(Level::start, Level::end, down, last);
}

double OneCycleScheduler::anneal(double from, double to, double progress) const {
  if (options_.anneal_strategy == OneCycleSchedulerOptions::AnnealStrategy::linear) {
    return (to - from) * progress + from;
  }
  return to + (from - to) / 2.0 * (std::cos(std::numbers::pi * progress) + 1.0);
}

std::vector<double> OneCycleScheduler::values_at(int64_t update) const {
  const Place place = place_of(update);
  std::vector<double> values;
  values.reserve(base_values().size());
  for (std::size_t group = 0; group < base_values().size(); ++group) {
    if (stays_zero(base_values()[group])) {
      values.push_back(0.0);
      continue;
    }
    const double peak =
        options_.max_lr ? options_.max_lr->at(group, "max_lr") : base_values()[group];
    const double start = peak / options_.div_factor;
    auto value_of = [&](Level level) {
      if (level == Level::peak) return peak;
      return level == Level::start ? start : start / options_.final_div_factor;
    };
    values.push_back(anneal(value_of(place.from), value_of(place.to), place.progress));
  }
  return values;
}

std::vector<FieldValues> OneCycleScheduler::other_values_at(int64_t update) const {
  if (!options_.cycle_momentum) return {};
  const Place place = place_of(update);
  FieldValues momentum{ParamGroupField::momentum, {}};
  momentum.values.reserve(base_values().size());
  for (std::size_t group = 0; group < base_values().size(); ++group) {
    auto value_of = [&](Level level) {
      return level == Level::peak ? options_.base_momentum.at(group, "base_momentum")
                                  : options_.max_momentum.at(group, "max_momentum");
    };
    momentum.values.push_back(anneal(value_of(place.from), value_of(place.to), place.progress));
  }
  return {std::move(momentum)};
}

std::vector<Scheduler::Length> OneCycleScheduler::lengths() const {
  return {{"num_updates", static_cast<double>(length_)}};
}

}  // namespace linkboy
