// Operators. This file implements those that manage memory or create views. All others run the
// CPU's kernel on the current stream.

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <optional>

#include "simulated_cuda/common_kernels.hpp"
#include "simulated_cuda/host_call.hpp"
#include "simulated_device/interface.hpp"

namespace linkboy::simulated_device {
namespace {

using simulated_cuda::OnlyKernels;
using simulated_cuda::range_of;
using simulated_cuda::run_on_stream;
using simulated_cuda::view_on_host;

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard on_device(with_index(device.value_or(c10::Device(kType))));
  return simulated_cuda::poisoned(at::detail::empty_generic(sizes, &device_allocator(), kKeys,
                                                            c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard on_device(with_index(device.value_or(c10::Device(kType))));
  return simulated_cuda::poisoned(at::detail::empty_strided_generic(
      sizes, strides, &device_allocator(), kKeys, c10::dtype_or_default(dtype)));
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef sizes,
                          std::optional<at::MemoryFormat> format) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_sizes_contiguous(sizes);
  if (format) tensor->empty_tensor_restride(*format);
  auto& storage = *self.storage().unsafeGetStorageImpl();
  const auto needed =
      static_cast<std::size_t>(self.storage_offset() + self.numel()) * self.element_size();
  if (storage.nbytes() < needed) resize_storage(storage, needed);
  return self;
}

at::Tensor& set_to_nothing(at::Tensor& self) { return self.set_(at::empty({0}, self.options())); }

void record_stream_of(at::Tensor& self, c10::Stream stream) {
  record_stream(self.storage().data_ptr(), stream);
}

/// Returns a CPU tensor of the same memory that does not own it.
at::Tensor unowned(const at::Tensor& tensor) {
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(at::kCPU).dtype(tensor.dtype()));
}

/// Copies between the host and a device, as with CUDA. The copy is done when the call returns, if
/// `non_blocking` is false or the target is host memory that is not page-locked. A source in such
/// memory is read before the call returns.
void copy_between_memories(const at::Tensor& target, const at::Tensor& source, bool non_blocking) {
  const bool to_device = target.device().type() == kType;
  const at::Tensor& on_host = to_device ? source : target;
  const c10::Device device = (to_device ? target : source).device();
  const c10::Stream stream = current_stream_of(device.index());
  const bool is_page_locked = machine().is_page_locked(on_host.const_data_ptr());
  machine().count(to_device ? &Counts::host_to_device : &Counts::device_to_host);
  if (!is_page_locked) machine().count(&Counts::pageable);
  if (to_device && machine().has_work_beside(stream_of(stream))) {
    machine().count(&Counts::overlapping_host_to_device);
  }

  Work work{.name = to_device ? "a copy to the device" : "a copy to the host",
            .reads = {},
            .writes = {},
            .run = {}};
  if (!to_device || is_page_locked) work.reads.push_back(range_of(source));
  if (to_device || is_page_locked) work.writes.push_back(range_of(target));
  const at::Tensor here = to_device && !is_page_locked ? on_host.clone() : unowned(on_host);
  const at::Tensor there = view_on_host(to_device ? target : source);
  work.run = [to = to_device ? there : here, from = to_device ? here : there] {
    const OnlyKernels only_kernels_there;
    to.copy_(from);
  };
  machine().launch(stream_of(stream), std::move(work));
  if (is_page_locked) record_page_locked(on_host.storage(), stream);
  if (!non_blocking || (!to_device && !is_page_locked)) check(machine().wait(stream_of(stream)));
}

/// Copies between devices on the source's stream, as with CUDA. This stream first waits for the
/// target's stream, which then waits for the copy.
void copy_between_devices(const at::Tensor& target, const at::Tensor& source) {
  machine().count(&Counts::device_to_device);
  Stream& giving = stream_of(current_stream_of(source.device().index()));
  Stream& taking = stream_of(current_stream_of(target.device().index()));
  check(machine().make_wait(giving, *record_event(taking)));
  machine().launch(giving, {.name = "a copy between devices",
                            .reads = {range_of(source)},
                            .writes = {range_of(target)},
                            .run = [to = view_on_host(target), from = view_on_host(source)] {
                              const OnlyKernels only_kernels_there;
                              to.copy_(from);
                            }});
  check(machine().make_wait(taking, *record_event(giving)));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  if (target.numel() == 0 || target.is_same(self)) return target;
  const OnlyKernels only_kernels;
  const at::Tensor source = self.expand(target.sizes());
  if (source.device() == target.device()) {
    simulated_cuda::copy_within_device(target, source);
  } else if (source.device().type() == target.device().type()) {
    copy_between_devices(target, source);
  } else {
    copy_between_memories(target, source, non_blocking);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const at::Tensor value = at::empty({}, at::TensorOptions(at::kCPU).dtype(self.dtype()));
  copy_from(self.reshape({}), value, false);
  return value.item();
}

/// Replaces LibTorch's function. That function does not treat tensors of PrivateUse1 as dense, and
/// torch::nn::Module::to would therefore reject them.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto is_dense = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided &&
           (tensor.is_cpu() || tensor.is_cuda() || tensor.device().type() == kType);
  };
  return self.key_set() == from.key_set() || (is_dense(self) && is_dense(from));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_stream>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("resize_", resize_);
  library.impl("set_", set_to_nothing);
  library.impl("set_.source_Storage",
               static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_));
  library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
  library.impl("is_set_to", at::native::is_set_to);
  library.impl("record_stream", record_stream_of);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar_dense);
  library.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  simulated_cuda::register_common_kernels(library);
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}
TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) {
  library.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) {
  library.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}

// Autocast uses LibTorch's lists for CUDA, which determine the precision of each operator.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace linkboy::simulated_device

// The lists refer to functions of this namespace.
namespace at::autocast {

#define LINKBOY_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define LINKBOY_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define LINKBOY_FP32_OF_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define LINKBOY_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LINKBOY_LOWER_PRECISION)
  AT_FORALL_FP32(LINKBOY_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(LINKBOY_FP32_OF_DTYPE)
  AT_FORALL_PROMOTE(LINKBOY_PROMOTE)
}

#undef LINKBOY_LOWER_PRECISION
#undef LINKBOY_FP32
#undef LINKBOY_FP32_OF_DTYPE
#undef LINKBOY_PROMOTE

}  // namespace at::autocast
