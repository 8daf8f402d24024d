#pragma once

#include <torch/optim/optimizer.h>

#include "linkboy/checkpoint/state_dict.hpp"

namespace linkboy {

/// The state of an optimizer of any class: the bytes of LibTorch's own archive, with the class and
/// the shapes of the parameters, which that archive does not check.
StateDict save_libtorch_archive(const torch::optim::Optimizer& optimizer);

/// Restores it; all or nothing.
///
/// @throws Error if it is of another class, other parameters, or damaged.
/// @note The archive is TorchScript's, so unlike all else in a checkpoint it is more than data:
///       load it from files that you trust.
void load_libtorch_archive(torch::optim::Optimizer& optimizer, const StateDict& saved);

}  // namespace linkboy
