#pragma once

#include <torch/optim/optimizer.h>

#include "linkboy/checkpoint/state_dict.hpp"

namespace linkboy {

/// Returns the state of an optimizer of any class: the bytes of LibTorch's own archive, with the
/// class and the shapes of the parameters, which the archive itself does not check.
StateDict save_libtorch_archive(const torch::optim::Optimizer& optimizer);

/// Restores the state, completely or not at all.
///
/// @throws Error if the state belongs to another class or other parameters, or if it is damaged.
/// @note The archive is in TorchScript's format. Unlike all other parts of a checkpoint, it can
///       contain more than data: load it only from files that you trust.
void load_libtorch_archive(torch::optim::Optimizer& optimizer, const StateDict& saved);

}  // namespace linkboy
