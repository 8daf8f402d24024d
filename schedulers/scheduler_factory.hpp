#pragma once

#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Options as text: {"step_size", "2 * num_updates_per_epoch"}, {"milestones", "11,12,60"}.
using SchedulerSettings = TextSettings;

/// Makes a scheduler by its name, for command lines and config files. Keys are the names of the
/// members of its options aggregate; what is not given has the default.
///
/// All of them also take `by_epoch`: true steps the schedule once per epoch (see `by_epoch`), so
/// that its lengths count epochs.
///
/// Numbers of updates may be placeholder expressions; lists are separated by commas; the values of
/// enumerations and flags are their names and true or false.
///
/// @throws Error if there is no such scheduler or option, or a value cannot be read; the message
///         lists what there is. What is out of its range shows when the run starts.
LINKBOY_API CreateSchedulerFn make_scheduler_fn(const std::string& name,
                                                const SchedulerSettings& settings);

/// step, multi-step, constant, linear, exponential, polynomial, cosine, cosine-restarts, tanh,
/// one-cycle, cyclic, inverse-sqrt, wsd, plateau. The others are made of functions and have no
/// name.
LINKBOY_API std::vector<std::string> scheduler_names();

/// The options that the scheduler takes, with their defaults.
/// @throws Error if there is no such scheduler.
LINKBOY_API SchedulerSettings scheduler_options(const std::string& name);

}  // namespace linkboy
