// The states of optimizers in a form that Python can load, and their description as text.

#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"

namespace linkboy {

/// Returns the state of `optimizer` in the layout of the Python class of the same name: `state` by
/// parameter index and `param_groups` with every option, so that Python's `load_state_dict` accepts
/// it. This applies to SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS. The state of any other
/// optimizer is the bytes of LibTorch's own archive, under `libtorch_archive`.
StateDict optimizer_state_dict(const torch::optim::Optimizer& optimizer);

/// Restores a state from `optimizer_state_dict` or from the Python class of the same name: the
/// state of each parameter and the options of each group. Tensors are moved to the device and dtype
/// of their parameter. A parameter without an entry starts from its initial state. Restores
/// everything or nothing.
///
/// @throws Error if groups, parameters or shapes do not match `optimizer`, or if the state belongs
///         to an optimizer of another class.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const StateDict& state);

/// The parts of an optimizer that `load_optimizer_state_dict` replaces.
class OptimizerBackup {
 public:
  explicit OptimizerBackup(torch::optim::Optimizer& optimizer);
  void restore(torch::optim::Optimizer& optimizer);

 private:
  std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer&>().state())> states_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
};

/// Returns lines of text: the class of `optimizer` and, if it is one of the classes above, every
/// option of its param groups that is not None, with its value.
std::vector<std::string> describe_optimizer(const torch::optim::Optimizer& optimizer);

}  // namespace linkboy
