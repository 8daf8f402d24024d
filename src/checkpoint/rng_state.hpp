#pragma once

#include <c10/core/Device.h>

#include "linkboy/state_dict.hpp"

namespace linkboy {

/// The states of LibTorch's generators: the CPU's and every CUDA device's.
StateDict rng_state();

/// @throws Error if `state` is of more CUDA devices than there are here.
void set_rng_state(const StateDict& state);

/// That of the device's default generator.
at::Tensor rng_state_of(c10::Device device);
void set_rng_state_of(c10::Device device, const at::Tensor& state);

}  // namespace linkboy
