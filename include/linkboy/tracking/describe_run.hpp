#pragma once

#include <string>

#include "linkboy/export.hpp"
#include "linkboy/tracking/tracker.hpp"

namespace linkboy {

class Trainer;

/// Returns the description of a run for its trackers. The configuration contains the RunConfig, the
/// optimizer, the model size and the seed; the environment contains the LibTorch version, the
/// device, the host, the process id and the number of threads. `first_update`, `first_epoch` and
/// `place` keep their defaults.
/// @param more  Further entries of the configuration; they replace entries of the same name.
LINKBOY_API TrackedRun describe_run(Trainer& trainer, const std::string& name,
                                    const TrackedRun::Entries& more);

}  // namespace linkboy
