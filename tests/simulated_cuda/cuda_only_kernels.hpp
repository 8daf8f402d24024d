#pragma once

#include <torch/library.h>

namespace linkboy::simulated_cuda {

/// Registers kernels for operators without a CPU kernel, or for which it is not sufficient.
void register_cuda_only_kernels(torch::Library& library);

}  // namespace linkboy::simulated_cuda
