// Finds the part whose turn it is, and passes it the number of updates since that part began.

#include "linkboy/schedulers/sequential_scheduler.hpp"

#include <algorithm>

#include "linkboy/error.hpp"
#include "linkboy/run/run_config.hpp"
#include "linkboy/schedulers/option_reader.hpp"

namespace linkboy {
namespace {

std::vector<int64_t> resolve_begins(const SequentialSchedulerOptions& options,
                                    const RunConfig& config) {
  LINKBOY_CHECK_OPTION(options.milestones.size() + 1 == options.schedulers->size(),
                       "the sequential schedule has ", options.schedulers->size(),
                       " schedulers and ", options.milestones.size(),
                       " milestones; there must be one milestone fewer than schedulers.");
  std::vector<int64_t> begins{0};
  if (options.milestones.empty()) return begins;
  for (int64_t milestone :
       OptionReader("sequential schedule", config).milestones(options.milestones)) {
    begins.push_back(milestone);
  }
  return begins;
}

std::vector<std::unique_ptr<Scheduler>> make_sequence(torch::optim::Optimizer& optimizer,
                                                      const SequentialSchedulerOptions& options,
                                                      const RunConfig& config) {
  const std::vector<int64_t> begins = resolve_begins(options, config);
  std::vector<RunConfig> configs(begins.size(), config);
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const int64_t end = i + 1 < begins.size() ? begins[i + 1] : config.max_num_updates;
    // A part that begins after the end of the run is also created, with the run's length.
    if (end > begins[i]) configs[i] = part_of_run(config, end - begins[i]);
  }
  return make_parts(optimizer, options.schedulers, configs);
}

}  // namespace

SequentialScheduler::SequentialScheduler(torch::optim::Optimizer& optimizer,
                                         const SequentialSchedulerOptions& options,
                                         const RunConfig& config)
    : CompositeScheduler(optimizer, make_sequence(optimizer, options, config)),
      begins_(resolve_begins(options, config)) {
  check_same_field("sequential schedule");
}

std::size_t SequentialScheduler::part_at(int64_t update) const {
  const auto next = std::upper_bound(begins_.begin() + 1, begins_.end(), update);
  return static_cast<std::size_t>(next - begins_.begin()) - 1;
}

bool SequentialScheduler::has_turn(std::size_t part, int64_t update) const {
  return part == part_at(update);
}

std::vector<double> SequentialScheduler::values_at(int64_t update) const {
  const std::size_t part = part_at(update);
  return part_values(part, update - begins_[part]);
}

std::vector<FieldValues> SequentialScheduler::other_values_at(int64_t update) const {
  const std::size_t part = part_at(update);
  return other_part_values(part, update - begins_[part]);
}

std::vector<Scheduler::Length> SequentialScheduler::lengths() const {
  std::vector<Length> lengths = CompositeScheduler::lengths();
  for (std::size_t i = 1; i < begins_.size(); ++i) {
    lengths.emplace_back("milestone " + std::to_string(i), static_cast<double>(begins_[i]));
  }
  return lengths;
}

}  // namespace linkboy
