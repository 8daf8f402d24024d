#pragma once

#include <c10/core/Device.h>

#include "linkboy/checkpoint/state_dict.hpp"

namespace linkboy {

/// Returns the states of LibTorch's default generators for the CPU and for `device`, which the run
/// uses. Other devices of the host have no part in it.
StateDict rng_state(c10::Device device);

/// Restores them, on this run's device; what `state` lacks stays as it is.
void set_rng_state(c10::Device device, const StateDict& state);

/// The state of the device's default generator.
at::Tensor rng_state_of(c10::Device device);
void set_rng_state_of(c10::Device device, const at::Tensor& state);

}  // namespace linkboy
