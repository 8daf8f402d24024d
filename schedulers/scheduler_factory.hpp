#pragma once

#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Options as text, such as {"step_size", "2 * num_updates_per_epoch"}, {"milestones", "11,12,60"}.
using SchedulerSettings = TextSettings;

/// The schedulers that can be created by name, for command lines and config files: step,
/// multi-step, constant, linear, exponential, polynomial, cosine, cosine-restarts, tanh, one-cycle,
/// cyclic, inverse-sqrt, wsd and plateau. The other schedulers need a function.
LINKBOY_API const NamedFactory<CreateSchedulerFn>& scheduler_factory();

/// Returns a function that creates the scheduler called `name`. The keys of `settings` are the
/// member names of the scheduler's options struct. Members without a setting keep their defaults.
///
/// All schedulers also accept the key `by_epoch`. If it is true, the schedule is stepped once per
/// epoch and its lengths count epochs (see the function `by_epoch`).
///
/// Numbers of updates may be placeholder expressions. List items are separated by commas.
/// Enumeration values are given by name, and flags are true or false.
///
/// @throws OptionError if there is no such scheduler or option (the message lists the names), if a
///         value cannot be parsed, or if a required option is missing. A value that is out of range
///         does not cause an error until the run starts.
[[nodiscard]] inline CreateSchedulerFn make_scheduler_fn(const std::string& name,
                                                         const SchedulerSettings& settings) {
  return scheduler_factory().make(name, settings);
}

/// Returns the names that `make_scheduler_fn` accepts.
inline std::vector<std::string> scheduler_names() { return scheduler_factory().names(); }

/// Returns the options of the scheduler, with their defaults.
/// @throws OptionError if there is no such scheduler.
inline SchedulerSettings scheduler_options(const std::string& name) {
  return scheduler_factory().options(name);
}

}  // namespace linkboy
