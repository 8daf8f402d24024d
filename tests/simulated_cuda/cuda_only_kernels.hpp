#pragma once

#include <torch/library.h>

namespace linkboy::simulated_cuda {

/// Registers the kernels of operators that the CPU lacks or that need more than its kernel.
void register_cuda_only_kernels(torch::Library& library);

}  // namespace linkboy::simulated_cuda
