// Launches work on a stream, and finds the memory that it accesses.

#include <ATen/ATen.h>

#include <utility>

#include "host_call.hpp"

namespace linkboy::simulated_cuda {

void launch_kernel(c10::Device device, Work work) {
  Machine::instance().launch(current_stream(device), std::move(work));
}

at::Tensor view_on_host(const at::Tensor& tensor) {
  if (tensor.device().type() != device_type()) return tensor;
  const auto options = at::TensorOptions(at::kCPU).dtype(tensor.dtype());
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(Machine::instance().bytes_of(tensor.const_data_ptr()), tensor.sizes(),
                       tensor.strides(), options);
}

Range range_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {nullptr, 0};
  std::size_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {tensor.const_data_ptr(), (last + 1) * tensor.element_size()};
}

}  // namespace linkboy::simulated_cuda
