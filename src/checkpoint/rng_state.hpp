#pragma once

#include <c10/core/Device.h>

#include "linkboy/checkpoint/state_dict.hpp"

namespace linkboy {

/// Returns the states of LibTorch's default generators for the CPU and for `device`, the device of
/// the run. The states of other devices are not included.
StateDict rng_state(c10::Device device);

/// Restores the states of the CPU and of `device`, the device of this run. Generators that are not
/// in `state` are unchanged.
void set_rng_state(c10::Device device, const StateDict& state);

/// Returns the state of the device's default generator.
at::Tensor rng_state_of(c10::Device device);
void set_rng_state_of(c10::Device device, const at::Tensor& state);

}  // namespace linkboy
