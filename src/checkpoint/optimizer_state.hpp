#pragma once

#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"

namespace linkboy {

/// The state of `optimizer` as the Python class of the same name lays it out: `state` by parameter
/// index and `param_groups` with every option, so that Python's `load_state_dict` takes it. Holds
/// for SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS. Any other optimizer is kept as the bytes of
/// LibTorch's own archive under `libtorch_archive`.
StateDict optimizer_state_dict(const torch::optim::Optimizer& optimizer);

/// Restores what `optimizer_state_dict` or the Python class of the same name saved: state and
/// per-group options. Tensors go to the device and dtype of their parameter; a parameter without an
/// entry restarts. All or nothing.
///
/// @throws Error if groups, parameters or shapes do not fit `optimizer`, or the state is another
///         optimizer's.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const StateDict& state);

/// Returns the class of `optimizer`, and each option of its param groups with its value if it is
/// one of the classes above.
std::vector<std::string> describe_optimizer(const torch::optim::Optimizer& optimizer);

}  // namespace linkboy
