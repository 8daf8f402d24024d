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

// The operators see the devices through one of LibTorch's interfaces: CUDA's, or that of a backend
// of one's own. The functions up to generator_of_kernel are defined for each.

c10::DeviceType device_type();

Stream& current_stream(c10::Device device);

/// The random numbers of one kernel: a generator of the CPU that begins at the place that the
/// device's generator has given to the kernel. Within a graph that place is read when the kernel
/// runs.
struct KernelGenerator {
  std::function<at::Generator()> make;
  std::vector<Range> reads;
};
KernelGenerator generator_of_kernel(const std::optional<at::Generator>& given, c10::Device device);

/// Work of the current stream of `device`. `run` must own no memory of a device, only addresses:
/// how long that memory lives is up to LibTorch's allocator, as it is with real kernels.
void launch_kernel(c10::Device device, Work work);

/// The bytes of a tensor on a device as a tensor of the CPU that does not own them. Only work of a
/// stream may look at it. Tensors of the CPU are returned as they are.
at::Tensor view_on_host(const at::Tensor& tensor);

/// From the first to the last element of a tensor on a device.
Range range_of(const at::Tensor& tensor);

/// `value` with each tensor in it replaced by `function(tensor)`.
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

/// While it lives, LibTorch's functions run kernels only: no autograd, no autocast, no profiler.
struct OnlyKernels {
  at::AutoDispatchBelowADInplaceOrView no_autograd{};
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  at::DisableRecordFunctionGuard no_profiler{};
};

/// Runs the CPU's kernel of an operator on the current stream of its device. The host continues at
/// the same time: how the results look is learnt from a run on zeros, once for each kind of call.
void run_on_stream(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace linkboy::simulated_cuda
