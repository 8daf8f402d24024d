#include "cuda_only_kernels.hpp"

#include <ATen/ATen.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/empty_strided_native.h>

#include <cstring>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "host_call.hpp"

namespace linkboy::simulated_cuda {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

/// LibTorch gives memory again that earlier work has written. Nobody may rely on what is left
/// there, nor use it before that work is done.
at::Tensor poisoned(at::Tensor tensor) {
  if (tensor.numel() == 0) return tensor;
  const Range range = range_of(tensor);
  Work work{.name = "an allocation", .reads = {}, .writes = {range}, .run = {}};
  work.run = [bytes = Machine::instance().bytes_of(tensor.const_data_ptr()),
              size = range.end - range.begin] { std::memset(bytes, 0xff, size); };
  launch_kernel(tensor.device(), std::move(work));
  return tensor;
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  return poisoned(at::native::empty_cuda(sizes, dtype, layout, device, pinned, format));
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pinned) {
  return poisoned(at::native::empty_strided_cuda(sizes, strides, dtype, layout, device, pinned));
}

/// Copies between memories are LibTorch's own. Within a device they would be kernels.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.device() != source.device()) return at::native::copy_(self, source, non_blocking);
  if (self.is_same(source) || self.numel() == 0) return self;
  const c10::DeviceGuard on_device(self.device());
  const OnlyKernels only_kernels;
  Machine::instance().count(&Counts::kernels);
  launch_kernel(self.device(), {.name = "aten::copy_",
                                .reads = {range_of(source)},
                                .writes = {range_of(self)},
                                .run = [to = view_on_host(self), from = view_on_host(source)] {
                                  const OnlyKernels only_kernels_there;
                                  to.copy_(from);
                                }});
  return self;
}

/// Its schema has no generator, so the CPU's kernel would take the numbers of the CPU's.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, at::kBool)};
  const double keep = 1 - p;
  at::Tensor mask = at::empty_like(input, at::kBool).bernoulli_(keep);
  at::Tensor output = keep == 0 ? at::zeros_like(input) : input * mask / keep;
  return {std::move(output), std::move(mask)};
}

/// The choice that is there on every device.
int64_t fused_sdp_choice(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const OptionalTensor&, double, bool, std::optional<double>, bool) {
  return static_cast<int64_t>(at::SDPBackend::math);
}

// Synchronised batch normalisation. Channels are dimension 1; each number below is one for each
// channel.

std::vector<int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<int64_t> dimensions;
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (d != 1) dimensions.push_back(d);
  }
  return dimensions;
}

at::Tensor by_channel(const at::Tensor& numbers, const at::Tensor& input) {
  std::vector<int64_t> sizes(static_cast<std::size_t>(input.dim()), 1);
  sizes[1] = input.size(1);
  return numbers.view(sizes);
}

at::Tensor in_full_precision(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

std::tuple<at::Tensor, at::Tensor> batch_norm_stats(const at::Tensor& input, double eps) {
  const at::Tensor values = in_full_precision(input);
  const auto dimensions = all_but_channels(input);
  return {values.mean(dimensions), (values.var(dimensions, /*unbiased=*/false) + eps).rsqrt()};
}

at::Tensor batch_norm_elemt(const at::Tensor& input, const OptionalTensor& weight,
                            const OptionalTensor& bias, const at::Tensor& mean,
                            const at::Tensor& invstd, double) {
  at::Tensor output =
      (in_full_precision(input) - by_channel(mean, input)) * by_channel(invstd, input);
  if (weight && weight->defined()) output = output * by_channel(*weight, input);
  if (bias && bias->defined()) output = output + by_channel(*bias, input);
  return output.to(input.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> batch_norm_gather_stats_with_counts(
    const at::Tensor&, const at::Tensor& means, const at::Tensor& invstds,
    const OptionalTensor& running_mean, const OptionalTensor& running_var, double momentum,
    double eps, const at::Tensor& counts) {
  const at::Tensor weights = counts.view({-1, 1}).to(means.scalar_type());
  const at::Tensor total = weights.sum();
  const at::Tensor mean = (means * weights).sum(0) / total;
  const at::Tensor variances = invstds.pow(-2) - eps;
  const at::Tensor variance = ((variances + (means - mean).square()) * weights).sum(0) / total;
  if (running_mean && running_mean->defined()) {
    at::Tensor(*running_mean).lerp_(mean.to(running_mean->scalar_type()), momentum);
  }
  if (running_var && running_var->defined()) {
    const at::Tensor unbiased = variance * total / (total - 1);
    at::Tensor(*running_var).lerp_(unbiased.to(running_var->scalar_type()), momentum);
  }
  return {mean, (variance + eps).rsqrt()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_backward_reduce(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean,
    const at::Tensor& invstd, const OptionalTensor&, bool, bool, bool) {
  const auto dimensions = all_but_channels(input);
  const at::Tensor dy = in_full_precision(gradient);
  const at::Tensor sum_dy = dy.sum(dimensions);
  const at::Tensor sum_dy_xmu =
      (dy * (in_full_precision(input) - by_channel(mean, input))).sum(dimensions);
  return {sum_dy, sum_dy_xmu, sum_dy_xmu * invstd, sum_dy.clone()};
}

at::Tensor batch_norm_backward_elemt(const at::Tensor& gradient, const at::Tensor& input,
                                     const at::Tensor& mean, const at::Tensor& invstd,
                                     const OptionalTensor& weight, const at::Tensor& sum_dy,
                                     const at::Tensor& sum_dy_xmu, const at::Tensor& counts) {
  const at::Tensor total = counts.sum();
  const at::Tensor of_mean = by_channel(sum_dy / total, input);
  const at::Tensor of_variance = by_channel(invstd.square() * sum_dy_xmu / total, input);
  const at::Tensor centred = in_full_precision(input) - by_channel(mean, input);
  at::Tensor result =
      (in_full_precision(gradient) - of_mean - centred * of_variance) * by_channel(invstd, input);
  if (weight && weight->defined()) result = result * by_channel(*weight, input);
  return result.to(input.scalar_type());
}

}  // namespace

void register_cuda_only_kernels(torch::Library& library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("copy_", copy_);
  library.impl("native_dropout", native_dropout);
  library.impl("_fused_sdp_choice", fused_sdp_choice);
  library.impl("batch_norm_stats", batch_norm_stats);
  library.impl("batch_norm_elemt", batch_norm_elemt);
  library.impl("batch_norm_gather_stats_with_counts", batch_norm_gather_stats_with_counts);
  library.impl("batch_norm_backward_reduce", batch_norm_backward_reduce);
  library.impl("batch_norm_backward_elemt", batch_norm_backward_elemt);
  // On a device these choose a backend; the CPU's kernel does so for itself.
  for (const char* name : {"convolution", "convolution_backward"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_stream>());
  }
}

}  // namespace linkboy::simulated_cuda
