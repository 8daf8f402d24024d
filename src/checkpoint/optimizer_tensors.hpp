// The tensors in an optimizer's state that must follow their parameter to another device or layout.

#pragma once

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <array>

namespace linkboy {

/// Returns the tensors of a parameter's optimizer state that have the parameter's shape. Some may
/// be undefined.
inline std::array<at::Tensor*, 1> tensors_of(torch::optim::SGDParamState& state) {
  return {&state.momentum_buffer()};
}
inline std::array<at::Tensor*, 3> tensors_of(torch::optim::AdamParamState& state) {
  return {&state.exp_avg(), &state.exp_avg_sq(), &state.max_exp_avg_sq()};
}
inline std::array<at::Tensor*, 3> tensors_of(torch::optim::AdamWParamState& state) {
  return {&state.exp_avg(), &state.exp_avg_sq(), &state.max_exp_avg_sq()};
}
inline std::array<at::Tensor*, 1> tensors_of(torch::optim::AdagradParamState& state) {
  return {&state.sum()};
}
inline std::array<at::Tensor*, 3> tensors_of(torch::optim::RMSpropParamState& state) {
  return {&state.square_avg(), &state.momentum_buffer(), &state.grad_avg()};
}

/// Returns whether two tensors have the same memory layout: the same sizes, and the same stride in
/// every dimension that has more than one index.
inline bool have_same_layout(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  if (a.strides() == b.strides()) return true;
  for (int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  }
  return true;
}

/// Moves `part`, a tensor of the parameter's state, to the parameter's device and converts it to
/// its memory layout. The fused kernels need both; on the CPU, they iterate over raw memory.
inline void follow_parameter(const at::Tensor& parameter, at::Tensor& part) {
  if (!part.defined() || part.sizes() != parameter.sizes()) return;
  const bool is_laid_out =
      !parameter.is_non_overlapping_and_dense() || have_same_layout(part, parameter);
  if (is_laid_out && part.device() == parameter.device()) return;
  part = at::empty_like(parameter, parameter.options().dtype(part.scalar_type())).copy_(part);
}

}  // namespace linkboy
