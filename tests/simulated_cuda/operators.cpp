// Replaces the CUDA kernels of LibTorch's operators when the library is loaded. All other parts are
// LibTorch's own: allocators, streams, events, graphs, generators, guards, and copies between
// memories.

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/empty_strided_native.h>
#include <c10/util/Exception.h>

#include <set>
#include <string>
#include <vector>

#include "common_kernels.hpp"
#include "host_call.hpp"

namespace linkboy::simulated_cuda {
namespace {

// ---- Kernels for operators without a CPU kernel, or for which it is not sufficient

using OptionalTensor = std::optional<at::Tensor>;

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

/// Calls LibTorch's own function for copies between memories. A copy within a device is a kernel.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.device() != source.device()) return at::native::copy_(self, source, non_blocking);
  if (self.is_same(source) || self.numel() == 0) return self;
  copy_within_device(self, source);
  return self;
}

// Synchronised batch normalisation. Dimension 1 contains the channels, and each of the following
// statistics has one value per channel.

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

// ---- Registration

/// Returns the operators that do not launch kernels: they manage memory, create views, or copy to
/// the host.
const std::set<std::string>& kept() {
  static const std::set<std::string> names{"aten::_efficientzerotensor",
                                           "aten::_has_compatible_shallow_copy_type",
                                           "aten::_local_scalar_dense",
                                           "aten::_reshape_alias",
                                           "aten::as_strided",
                                           "aten::is_set_to",
                                           "aten::record_stream",
                                           "aten::resize_",
                                           "aten::set_",
                                           "aten::set_.source_Storage",
                                           "aten::set_.source_Storage_storage_offset",
                                           "aten::set_.source_Tensor",
                                           "aten::unfold",
                                           "aten::view"};
  return names;
}

/// Suppresses LibTorch's warning for each kernel that replaces another.
class NoWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

bool replace_kernels() {
  NoWarnings no_warnings;
  const c10::WarningUtils::WarningHandlerGuard quiet(&no_warnings);
  // The handles are never destroyed, because the registrations would end with them.
  static auto* registrations = new std::vector<c10::RegistrationHandleRAII>;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNamesForDispatchKey(c10::DispatchKey::CUDA)) {
    const std::string text = c10::toString(name);
    if (!text.starts_with("aten::") || kept().contains(text)) continue;
    registrations->push_back(dispatcher.registerImpl(
        name, c10::DispatchKey::CUDA, c10::KernelFunction::makeFromBoxedFunction<&run_on_stream>(),
        std::nullopt, nullptr, "simulated CUDA"));
  }
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  library->impl("empty.memory_format", empty);
  library->impl("empty_strided", empty_strided);
  library->impl("copy_", copy_);
  library->impl("batch_norm_stats", batch_norm_stats);
  library->impl("batch_norm_elemt", batch_norm_elemt);
  library->impl("batch_norm_gather_stats_with_counts", batch_norm_gather_stats_with_counts);
  library->impl("batch_norm_backward_reduce", batch_norm_backward_reduce);
  library->impl("batch_norm_backward_elemt", batch_norm_backward_elemt);
  register_common_kernels(*library);
  at::globalContext().setUserEnabledCuDNN(false);
  return true;
}

const bool are_replaced = replace_kernels();

}  // namespace
}  // namespace linkboy::simulated_cuda
