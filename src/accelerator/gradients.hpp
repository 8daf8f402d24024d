#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace linkboy {

/// Returns the gradients of the parameters that have one.
inline std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

}  // namespace linkboy
