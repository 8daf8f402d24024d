#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "distributed/launch_environment.hpp"
#include "linkboy/distributed/distributed_options.hpp"
#include "linkboy/distributed/process_group.hpp"

namespace linkboy {

/// @throws Error if an option is out of its range.
void check_distributed_options(const DistributedOptions& options);

/// The group of all processes of this launch, with a backend for the CPU and one for `device`. All
/// callers share one, which ends with the last of them. Collective, if there are several processes.
/// @throws Error if they do not find together in time, or the backend is not there.
std::shared_ptr<ProcessGroup> init_process_group(const LaunchEnvironment& launch,
                                                 const DistributedOptions& options,
                                                 c10::Device device);

}  // namespace linkboy
