#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <optional>
#include <vector>

#include "hardware.hpp"

namespace linkboy::simulated_cuda {

// The operators use the devices through one of LibTorch's interfaces: CUDA's, or the one for custom
// backends. The functions up to generator_of_kernel are defined separately for each interface.

c10::DeviceType device_type();

Stream& current_stream(c10::Device device);

/// The random numbers of one kernel: a CPU generator that begins at the position that the device's
/// generator has assigned to the kernel. Within a graph, the position is read when the kernel runs.
struct KernelGenerator {
  std::function<at::Generator()> make;
  std::vector<Range> reads;
};
KernelGenerator generator_of_kernel(const std::optional<at::Generator>& given, c10::Device device);

/// Launches work on the current stream of `device`. `run` must not own memory of a device, but only
/// contain addresses: as with real kernels, LibTorch's allocator determines how long that memory
/// lives.
void launch_kernel(c10::Device device, Work work);

/// Returns the bytes of a tensor on a device as a CPU tensor that does not own them. Only work of a
/// stream may access it. A CPU tensor is returned unchanged.
at::Tensor view_on_host(const at::Tensor& tensor);

/// Returns the bytes from the first to the last element of a tensor on a device.
Range range_of(const at::Tensor& tensor);

/// Returns `value` with each tensor replaced by `function(tensor)`.
template <class Function>
c10::IValue map_tensors(const c10::IValue& value, const Function& function) {
  if (value.isTensor() && value.toTensor().defined()) return function(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      mapped.push_back(tensor.defined() ? function(tensor) : tensor);
    }
    return mapped;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> mapped;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      mapped.push_back(tensor && tensor->defined() ? std::optional(function(*tensor)) : tensor);
    }
    return mapped;
  }
  return value;
}

template <class Function>
void visit_tensors(const c10::IValue& value, const Function& function) {
  map_tensors(value, [&](const at::Tensor& tensor) {
    function(tensor);
    return tensor;
  });
}

/// While it exists, LibTorch's functions run kernels only, without autograd, autocast and profiler.
struct OnlyKernels {
  at::AutoDispatchBelowADInplaceOrView no_autograd{};
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  at::DisableRecordFunctionGuard no_profiler{};
};

/// Runs the CPU's kernel of an operator on the current stream of its device, while the host
/// continues. The sizes, strides and dtypes of the results are determined by a run on zeros, once
/// for each kind of call.
void run_on_stream(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace linkboy::simulated_cuda
