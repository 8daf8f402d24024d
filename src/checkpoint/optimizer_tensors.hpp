// The memory layouts of parameters, which the tensors in an optimizer's state must follow.

#pragma once

#include <ATen/ATen.h>

namespace linkboy {

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
