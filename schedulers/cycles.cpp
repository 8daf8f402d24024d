// Schedules that rise and fall, while the momentum of each group moves in the opposite direction:
// once between three levels, or in triangular waves between two.

#include "linkboy/schedulers/cycles.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

// The levels of OneCycleScheduler.
constexpr int kStart = 0;
constexpr int kPeak = 1;
constexpr int kEnd = 2;

/// Returns the fields that a schedule sets in addition to `field`.
std::vector<ParamGroupField> momentum_beside(ParamGroupField field, bool cycle_momentum,
                                             std::string_view schedule) {
  if (!cycle_momentum) return {};
  LINKBOY_CHECK_OPTION(
      field != ParamGroupField::momentum, "the ", schedule,
      "'s field is momentum, which cycle_momentum also moves; set cycle_momentum to "
      "false.");
  return {ParamGroupField::momentum};
}

template <class Options>
void check_levels(const OptionReader& reader, const Options& options, std::size_t num_groups) {
  if (options.max_lr) reader.not_negative("max_lr", *options.max_lr, num_groups);
  reader.not_negative("base_momentum", options.base_momentum, num_groups);
  reader.not_negative("max_momentum", options.max_momentum, num_groups);
}

/// Returns `momentum_of(lowest, highest)` for each group, if the momentum moves.
template <class Options, class MomentumOf>
std::vector<FieldValues> momentums(const Options& options, std::size_t num_groups,
                                   MomentumOf momentum_of) {
  if (!options.cycle_momentum) return {};
  FieldValues momentum{ParamGroupField::momentum, {}};
  momentum.values.reserve(num_groups);
  for (std::size_t group = 0; group < num_groups; ++group) {
    momentum.values.push_back(momentum_of(options.base_momentum.at(group, "base_momentum"),
                                          options.max_momentum.at(group, "max_momentum")));
  }
  return {std::move(momentum)};
}

}  // namespace

// ---- One cycle

OneCycleScheduler::OneCycleScheduler(torch::optim::Optimizer& optimizer,
                                     const OneCycleSchedulerOptions& options,
                                     const RunConfig& config)
    : Scheduler(optimizer, options.field,
                momentum_beside(options.field, options.cycle_momentum, "one-cycle schedule")),
      options_(options) {
  const OptionReader reader("one-cycle schedule", config);
  length_ = reader.count("num_updates", options.num_updates);
  add_length("num_updates", static_cast<double>(length_));
  reader.in_range("pct_start", options.pct_start, 0.0, options.three_phase ? 0.5 : 1.0);
  reader.positive("div_factor", options.div_factor);
  reader.positive("final_div_factor", options.final_div_factor);
  check_levels(reader, options, base_values().size());
}

OneCycleScheduler::Place OneCycleScheduler::place_of(int64_t update) const {
  const auto n = static_cast<double>(std::min(update, length_ - 1));
  const auto total = static_cast<double>(length_);
  const double peak = options_.pct_start * total - 1.0;
  const double last = total - 1.0;
  auto place = [&](int from, int to, double begin, double end) {
    return Place{from, to, end > begin ? (n - begin) / (end - begin) : 1.0};
  };
  if (n <= peak) return place(kStart, kPeak, 0.0, peak);
  if (!options_.three_phase) return place(kPeak, kEnd, peak, last);
  const double down = 2.0 * options_.pct_start * total - 2.0;
  if (n <= down) return place(kPeak, kStart, peak, down);
  return place(kStart, kEnd, down, last);
}

double OneCycleScheduler::value_between(const Place& place, std::array<double, 3> levels) const {
  const double from = levels[static_cast<std::size_t>(place.from)];
  const double to = levels[static_cast<std::size_t>(place.to)];
  if (options_.anneal_strategy == OneCycleSchedulerOptions::AnnealStrategy::linear) {
    return (to - from) * place.progress + from;
  }
  return to + (from - to) / 2.0 * (std::cos(std::numbers::pi * place.progress) + 1.0);
}

std::vector<double> OneCycleScheduler::values_at(int64_t update) const {
  const Place place = place_of(update);
  return values_of_groups([&](std::size_t group, double base) {
    const double peak = options_.max_lr ? options_.max_lr->at(group, "max_lr") : base;
    const double start = peak / options_.div_factor;
    return value_between(place, {start, peak, start / options_.final_div_factor});
  });
}

std::vector<FieldValues> OneCycleScheduler::other_values_at(int64_t update) const {
  const Place place = place_of(update);
  return momentums(options_, base_values().size(), [&](double lowest, double highest) {
    return value_between(place, {highest, lowest, highest});
  });
}

// ---- Cyclic

CyclicScheduler::CyclicScheduler(torch::optim::Optimizer& optimizer,
                                 const CyclicSchedulerOptions& options, const RunConfig& config)
    : Scheduler(optimizer, options.field,
                momentum_beside(options.field, options.cycle_momentum, "cyclic schedule")),
      options_(options) {
  const OptionReader reader("cyclic schedule", config);
  step_size_up_ = reader.length("step_size_up", options.step_size_up);
  step_size_down_ =
      reader.length("step_size_down", options.step_size_down.value_or(options.step_size_up));
  add_length("step_size_up", step_size_up_);
  add_length("step_size_down", step_size_down_);
  reader.positive("step_size_up", step_size_up_);
  reader.positive("step_size_down", step_size_down_);
  reader.positive("gamma", options.gamma);
  if (options.base_lr) reader.not_negative("base_lr", *options.base_lr, base_values().size());
  check_levels(reader, options, base_values().size());
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
  return values_of_groups([&](std::size_t group, double base) {
    const double upper = options_.max_lr ? options_.max_lr->at(group, "max_lr") : base;
    const double lower =
        options_.base_lr ? options_.base_lr->at(group, "base_lr") : kBaseShare * upper;
    return lower + (upper - lower) * height;
  });
}

std::vector<FieldValues> CyclicScheduler::other_values_at(int64_t update) const {
  const double height = options_.cycle_momentum ? height_at(update) : 0.0;
  return momentums(options_, base_values().size(), [&](double lowest, double highest) {
    return highest - (highest - lowest) * height;
  });
}

}  // namespace linkboy
