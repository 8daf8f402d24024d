// The states of LibTorch's default random number generators, for training states.

#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Returns the states of LibTorch's default generators for the CPU and for `device`, the device of
/// the run. The states of other devices are not included.
StateDict rng_state(c10::Device device);

/// Restores the states of the CPU and of `device`, the device of this run. Generators that are not
/// in `state` are unchanged.
void set_rng_state(c10::Device device, const StateDict& state);

/// Seeds the same generators for a process that does not have a saved state. The seed depends only
/// on `states`, those of the processes that saved, and on `rank`, so that it differs between
/// processes and is the same in each resumed run. If several processes have saved the same state,
/// restores it, because the program lets all processes draw the same numbers.
void set_rng_state_of_additional_rank(c10::Device device, const std::vector<StateDict>& states,
                                      int64_t rank);

/// Returns the state of the device's default generator.
LINKBOY_API at::Tensor rng_state_of(c10::Device device);
LINKBOY_API void set_rng_state_of(c10::Device device, const at::Tensor& state);

}  // namespace linkboy
