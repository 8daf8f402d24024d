#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "distributed/launch_environment.hpp"
#include "linkboy/distributed/distributed_options.hpp"
#include "linkboy/distributed/process_group.hpp"

namespace linkboy {

/// Checks the options.
/// @throws OptionError if an option is out of range.
void check_distributed_options(const DistributedOptions& options);

/// Returns the group of all processes of this launch, with a backend for the CPU and one for
/// `device`. If all processes still have the group of an earlier call with the same timeout and
/// device, returns it; otherwise, they create another one. If `launch.is_distributed()` is false,
/// returns a group with only this process.
/// @throws OptionError if an option is out of range or does not match the device; DistributedError
///         if the processes do not find each other in time; Error if the backend is not available.
/// @note Collective, if there are several processes.
std::shared_ptr<ProcessGroup> init_process_group(const LaunchEnvironment& launch,
                                                 const DistributedOptions& options,
                                                 c10::Device device);

}  // namespace linkboy
