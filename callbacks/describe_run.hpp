#pragma once

#include <string>

#include "linkboy/export.hpp"
#include "linkboy/tracking/tracker.hpp"

namespace linkboy {

class Trainer;

/// A run from its beginning: what it resolved to (its RunConfig, optimizer, model size and seed),
/// versions, device, host and threads.
/// @param more  Of the configuration; replaces entries of the same name.
LINKBOY_API TrackedRun describe_run(Trainer& trainer, const std::string& name,
                                    const TrackedRun::Entries& more);

}  // namespace linkboy
