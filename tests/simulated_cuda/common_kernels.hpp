#pragma once

#include <torch/library.h>

namespace linkboy::simulated_cuda {

/// Overwrites a new tensor with NaN and returns it. LibTorch reuses memory that earlier work has
/// written. A program must not depend on its old contents or use it before that work is done.
at::Tensor poisoned(at::Tensor tensor);

/// Copies between tensors of the same device, by a kernel.
void copy_within_device(const at::Tensor& target, const at::Tensor& source);

/// Registers the kernels of devices that are not the CPU's kernels of the same names.
void register_common_kernels(torch::Library& library);

}  // namespace linkboy::simulated_cuda
