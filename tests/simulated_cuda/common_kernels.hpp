#pragma once

#include <torch/library.h>

namespace linkboy::simulated_cuda {

/// Overwrites a new tensor, which is returned. LibTorch gives memory again that earlier work has
/// written: nobody may rely on what is left there, nor use it before that work is done.
at::Tensor poisoned(at::Tensor tensor);

/// A copy between tensors of one device is a kernel.
void copy_within_device(const at::Tensor& target, const at::Tensor& source);

/// Registers what runs on a device and is not the CPU's kernel of the same name.
void register_common_kernels(torch::Library& library);

}  // namespace linkboy::simulated_cuda
