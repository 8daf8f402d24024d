#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <vector>

#include "linkboy/export.hpp"

namespace linkboy {

/// The backward pass of a loss whose gradients were computed together with it.
struct LINKBOY_API KnownGradients final : torch::autograd::Node {
  explicit KnownGradients(std::vector<at::Tensor> of_parameters);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& factors) override;

  std::vector<at::Tensor> gradients;
};

/// Makes the backward pass of `loss` yield these gradients of the parameters.
/// @param gradients  Each in memory of its own.
LINKBOY_API void set_gradients(at::Tensor& loss, const std::vector<at::Tensor>& parameters,
                               std::vector<at::Tensor> gradients);

/// Makes the backward pass of such a loss without the autograd engine, which would take longer than
/// the step of a small model. Returns false, and does nothing, for other losses, and if a hook
/// waits for a gradient.
bool accumulate_known_gradients(const at::Tensor& loss);

}  // namespace linkboy
