#include "common_kernels.hpp"

#include <ATen/ATen.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "host_call.hpp"

namespace linkboy::simulated_cuda {
namespace {

/// Implemented here because its schema does not have a generator, so the CPU's kernel would use the
/// CPU's generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, at::kBool)};
  const double keep = 1 - p;
  at::Tensor mask = at::empty_like(input, at::kBool).bernoulli_(keep);
  at::Tensor output = keep == 0 ? at::zeros_like(input) : input * mask / keep;
  return {std::move(output), std::move(mask)};
}

/// Chooses the implementation that every device supports.
int64_t fused_sdp_choice(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const std::optional<at::Tensor>&, double, bool, std::optional<double>,
                         bool) {
  return static_cast<int64_t>(at::SDPBackend::math);
}

}  // namespace

at::Tensor poisoned(at::Tensor tensor) {
  if (tensor.numel() == 0) return tensor;
  const Range range = range_of(tensor);
  Work work{.name = "an allocation", .reads = {}, .writes = {range}, .run = {}};
  work.run = [bytes = Machine::instance().bytes_of(tensor.const_data_ptr()),
              size = range.end - range.begin] { std::memset(bytes, 0xff, size); };
  launch_kernel(tensor.device(), std::move(work));
  return tensor;
}

void copy_within_device(const at::Tensor& target, const at::Tensor& source) {
  const c10::DeviceGuard on_device(target.device());
  const OnlyKernels only_kernels;
  Machine::instance().count(&Counts::kernels);
  launch_kernel(target.device(), {.name = "aten::copy_",
                                  .reads = {range_of(source)},
                                  .writes = {range_of(target)},
                                  .run = [to = view_on_host(target), from = view_on_host(source)] {
                                    const OnlyKernels only_kernels_there;
                                    to.copy_(from);
                                  }});
}

void register_common_kernels(torch::Library& library) {
  library.impl("native_dropout", native_dropout);
  library.impl("_fused_sdp_choice", fused_sdp_choice);
  // On a device, these operators choose a backend. The CPU's kernel makes its own choice.
  for (const char* name : {"convolution", "convolution_backward"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_stream>());
  }
}

}  // namespace linkboy::simulated_cuda
