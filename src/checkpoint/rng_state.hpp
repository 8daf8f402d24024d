#pragma once

#include "linkboy/state_dict.hpp"

namespace linkboy {

/// The states of LibTorch's generators: the CPU's and every CUDA device's.
StateDict rng_state();

/// @throws Error if `state` is of more CUDA devices than there are here.
void set_rng_state(const StateDict& state);

}  // namespace linkboy
