// Synchronises batch norm in LibTorch's dispatcher, because a layer's `forward` cannot be replaced.

#include "distributed/batch_norm_registry.hpp"

#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <mutex>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace linkboy {
namespace {

using at::Tensor;
using detail::BatchNormCollectives;
using Layer = detail::SyncBatchNormLayer;
using LayerPtr = detail::SyncBatchNormLayerPtr;
using Registry = detail::SyncBatchNormRegistry;
using OptionalTensor = std::optional<Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // of input, weight and bias

// `forward` of a LibTorch module is not virtual, and users access layers through their concrete
// types, so layers cannot be replaced. But all calls go through the dispatcher, where the tensors
// of a call identify its layer.

bool has(const OptionalTensor& tensor) { return tensor && tensor->defined(); }

Tensor to_type(const OptionalTensor& tensor, at::ScalarType dtype) {
  return has(tensor) ? tensor->to(dtype) : Tensor();
}

/// A forward pass in training.
struct Call {
  const Tensor& input;
  const OptionalTensor& weight;
  const OptionalTensor& bias;
  const OptionalTensor& running_mean;
  const OptionalTensor& running_var;
  double momentum;
  double eps;

  int64_t num_channels() const { return input.size(1); }
  /// The dtype of the statistics: 32 bits for 16-bit inputs.
  at::TensorOptions options() const {
    return input.options().dtype(input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  }
};

/// The statistics of the batch of all ranks.
struct Statistics {
  Tensor mean;
  Tensor invstd;
  Tensor count;  // its sum is the number of values per channel
};

/// Updates the running statistics. Like LibTorch's kernels, this does not count as an in-place
/// change that would make a backward pass fail.
void update_running(const OptionalTensor& running, const Tensor& value, double momentum) {
  if (!has(running)) return;
  const Tensor data = running->variable_data();
  data.copy_(at::lerp(data.to(value.scalar_type()), value, momentum));
}

Statistics statistics_on_cpu(const Call& call, const BatchNormCollectives& group) {
  const int64_t num_channels = call.num_channels();
  // Uses float64, in which counts are exact. For so few numbers, the cost is negligible.
  const Tensor mine = at::zeros({2 * num_channels + 1}, call.options().dtype(at::kDouble));
  if (call.input.numel() > 0) {
    // Unused running statistics of 32 bits make LibTorch compute the sums over 16-bit inputs in 32
    // bits.
    const Tensor unused = at::zeros({2, num_channels}, call.options());
    const auto [mean, var] = at::batch_norm_update_stats(call.input, unused[0], unused[1], 0.0);
    mine.narrow(0, 0, num_channels).copy_(mean);
    mine.narrow(0, num_channels, num_channels).copy_(var);
    mine.narrow(0, 2 * num_channels, 1).fill_(call.input.numel() / num_channels);
  }
  const Tensor all = group.all_gather(mine);
  const Tensor means = all.narrow(1, 0, num_channels);
  const Tensor vars = all.narrow(1, num_channels, num_channels);
  const Tensor counts = all.narrow(1, 2 * num_channels, 1);
  const Tensor count = counts.sum();
  const auto total = count.item<double>();
  if (total == 0) {  // LibTorch does not change its statistics in this case either
    const Tensor zeros = at::zeros({num_channels}, call.options());
    return {zeros, zeros, count};
  }
  const Tensor mean = (means * counts).sum(0) / total;
  const Tensor var = ((vars + (means - mean).square()) * counts).sum(0) / total;
  update_running(call.running_mean, mean, call.momentum);
  update_running(call.running_var, var * (total / (total - 1)), call.momentum);
  const Tensor shifted = var + call.eps;
  const Tensor invstd = at::where(shifted == 0, 0.0, shifted.rsqrt());  // like LibTorch for eps 0
  return {mean.to(call.options()), invstd.to(call.options()), count};
}

/// Works like Python's SyncBatchNorm, but without its wait for the device.
Statistics statistics_on_cuda(const Call& call, const BatchNormCollectives& group) {
  const int64_t num_channels = call.num_channels();
  Tensor mean = at::zeros({num_channels}, call.options());
  Tensor invstd = at::ones({num_channels}, call.options());
  // The count of an empty batch. It is too small to affect the result, but it prevents a division
  // by 0 in LibTorch's kernel.
  double my_count = 1e-30;
  if (call.input.numel() > 0) {
    std::tie(mean, invstd) = at::batch_norm_stats(call.input, call.eps);
    const int64_t num_values = call.input.numel() / num_channels;
    my_count = static_cast<double>(num_values);
  }
  const Tensor count = at::full({1}, my_count, call.options());
  const Tensor all = group.all_gather(at::cat({mean, invstd, count}));
  const Tensor means = all.narrow(1, 0, num_channels);
  const Tensor invstds = all.narrow(1, num_channels, num_channels);
  const Tensor counts = all.select(1, 2 * num_channels).contiguous();
  Tensor running_mean;  // in the dtype of the counts, as the kernel requires
  Tensor running_var;
  if (has(call.running_mean)) running_mean = call.running_mean->variable_data().to(call.options());
  if (has(call.running_var)) running_var = call.running_var->variable_data().to(call.options());
  std::tie(mean, invstd) = at::batch_norm_gather_stats_with_counts(
      means, means, invstds, running_mean, running_var, call.momentum, call.eps, counts);
  if (has(call.running_mean)) call.running_mean->variable_data().copy_(running_mean);
  if (has(call.running_var)) call.running_var->variable_data().copy_(running_var);
  return {mean, invstd, counts.to(at::kInt)};
}

Tensor normalise(const Call& call, const Statistics& statistics) {
  const auto& [mean, invstd, count] = statistics;
  if (call.input.numel() == 0) return at::empty_like(call.input);
  if (call.input.is_cuda()) {
    return at::batch_norm_elemt(call.input, call.weight, call.bias, mean, invstd, call.eps);
  }
  // Works like evaluation, with 1 / invstd^2 as the variance and without an epsilon.
  const auto dtype = mean.scalar_type();
  const Tensor var = invstd.to(at::kDouble).pow(-2).to(dtype);
  return std::get<0>(at::native_batch_norm(call.input, to_type(call.weight, dtype),
                                           to_type(call.bias, dtype), mean, var,
                                           /*training=*/false, /*momentum=*/0.0, /*eps=*/0.0));
}

/// @param sums  The sums over all ranks of grad_output, and of grad_output times the normalised
///        input.
Tensor grad_input_on_cpu(const Tensor& grad_output, const Tensor& input,
                         const OptionalTensor& weight, const Statistics& statistics,
                         const Tensor& sums) {
  const auto& [mean, invstd, count] = statistics;
  const auto spread = [&](const Tensor& values) {
    std::vector<int64_t> shape(input.dim(), 1);
    shape[1] = -1;
    return values.to(statistics.mean.scalar_type()).view(shape);
  };
  const Tensor means = sums.to(at::kDouble) / count;
  const Tensor scale = has(weight) ? invstd * weight->to(at::kDouble) : invstd.to(at::kDouble);
  // Uses centred inputs, because sums of large inputs would lose significant digits.
  return at::addcmul(spread(-scale * means[0]), input - spread(mean),
                     spread(-scale * invstd * means[1]))
      .addcmul_(grad_output.to(mean.scalar_type()), spread(scale))
      .to(input.scalar_type());
}

/// @return The gradients; undefined tensors for those that were not requested.
Gradients backward(const Tensor& any_grad, const Tensor& input, const OptionalTensor& weight,
                   const Statistics& statistics, std::array<bool, 3> wanted, const Layer& layer) {
  const auto& [mean, invstd, count] = statistics;
  const Tensor grad_output = any_grad.contiguous(input.suggest_memory_format());
  Tensor grad_weight = at::zeros_like(mean);
  Tensor grad_bias = grad_weight;
  Tensor sums = at::zeros({2, mean.numel()}, mean.options());
  if (input.numel() > 0 && input.is_cuda()) {
    Tensor sum_dy;
    Tensor sum_dy_xmu;
    std::tie(sum_dy, sum_dy_xmu, grad_weight, grad_bias) = at::batch_norm_backward_reduce(
        grad_output, input, mean, invstd, weight, wanted[0], wanted[1], wanted[2]);
    if (wanted[0]) sums = at::stack({sum_dy, sum_dy_xmu});
  } else if (input.numel() > 0) {
    // These gradients do not depend on the weight but have its dtype. invstd has the dtype of the
    // statistics.
    std::tie(std::ignore, grad_weight, grad_bias) =
        at::native_batch_norm_backward(grad_output, input, /*weight=*/invstd, {}, {}, mean, invstd,
                                       /*train=*/true, /*eps=*/0.0, {false, true, true});
    sums = at::stack({grad_bias, grad_weight});
  }
  Tensor grad_input;
  if (wanted[0]) {
    layer.group->all_reduce(sums);
    if (input.numel() == 0) {
      grad_input = at::zeros_like(input);
    } else if (input.is_cuda()) {
      grad_input = at::batch_norm_backward_elemt(grad_output, input, mean, invstd,
                                                 to_type(weight, mean.scalar_type()), sums[0],
                                                 sums[1], count);
    } else {
      grad_input = grad_input_on_cpu(grad_output, input, weight, statistics, sums);
    }
  }
  const auto dtype = has(weight) ? weight->scalar_type() : mean.scalar_type();
  return {grad_input, wanted[1] ? grad_weight.to(dtype) : Tensor(),
          wanted[2] ? grad_bias.to(dtype) : Tensor()};
}

/// Normalises with given statistics. Computes the gradient for statistics that depend on the input.
class Normalisation : public torch::autograd::Function<Normalisation> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input,
                        const OptionalTensor& weight, const OptionalTensor& bias, const Call& call,
                        const Statistics& statistics, const LayerPtr& layer) {
    context->save_for_backward(
        {input, weight.value_or(Tensor()), statistics.mean, statistics.invstd, statistics.count});
    context->saved_data["layer"] = c10::IValue::make_capsule(layer);
    context->saved_data["has_bias"] = has(bias);
    return normalise(call, statistics);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    LINKBOY_CHECK(!at::GradMode::is_enabled(), "a synchronised batch norm has no second ",
                  "derivative; call backward without create_graph, or do not convert the model.");
    const auto saved = context->get_saved_variables();
    const auto layer = context->saved_data["layer"].toCapsule();
    const bool has_bias = context->saved_data["has_bias"].toBool();
    const auto [grad_input, grad_weight, grad_bias] = linkboy::backward(
        grads[0], saved[0], saved[1], {saved[2], saved[3], saved[4]},
        {context->needs_input_grad(0), saved[1].defined() && context->needs_input_grad(1),
         has_bias && context->needs_input_grad(2)},
        static_cast<const Layer&>(*layer));
    return {grad_input, grad_weight, grad_bias, Tensor(), Tensor(), Tensor()};
  }
};

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, int64_t>;

// `Function::apply` reserves space in an empty std::vector<bool>. GCC 14 does not know that it is
// empty, and warns about a copy of elements that do not exist.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Warray-bounds"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#endif
Forward synchronised(const Call& any, const LayerPtr& layer) {
  LINKBOY_CHECK(any.input.dim() >= 2 && any.input.size(1) == layer->key.numel(), "the layer \"",
                layer->name, "\" has ", layer->key.numel(), " channels, but its input has the ",
                "shape ", any.input.sizes(), "; pass inputs of shape [batch, channels, ...].");
  const Tensor input = any.input.contiguous(any.input.suggest_memory_format());
  const Call call{input,           any.weight,   any.bias, any.running_mean,
                  any.running_var, any.momentum, any.eps};
  Statistics statistics;
  {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const auto on_device = input.is_cuda() ? statistics_on_cuda : statistics_on_cpu;
    statistics = on_device(call, *layer->group);
  }
  return {Normalisation::apply(input, call.weight, call.bias, call, statistics, layer),
          statistics.mean, statistics.invstd, statistics.count, layer->impl_index};
}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

/// Replaces the operator that `aten::batch_norm` calls, and that TorchScript calls in its place to
/// differentiate it.
Forward batch_norm_impl_index(const Tensor& input, const OptionalTensor& weight,
                              const OptionalTensor& bias, const OptionalTensor& running_mean,
                              const OptionalTensor& running_var, bool training, double momentum,
                              double eps, bool cudnn_enabled) {
  if (const auto layer = Registry::find_call(weight, running_mean, training)) {
    return synchronised({input, weight, bias, running_mean, running_var, momentum, eps}, layer);
  }
  return at::native::_batch_norm_impl_index(input, weight, bias, running_mean, running_var,
                                            training, momentum, eps, cudnn_enabled);
}

/// Called only by TorchScript.
Gradients batch_norm_impl_index_backward(int64_t impl_index, const Tensor& input,
                                         const Tensor& grad_output, const OptionalTensor& weight,
                                         const OptionalTensor& running_mean,
                                         const OptionalTensor& running_var,
                                         const OptionalTensor& mean, const OptionalTensor& invstd,
                                         bool train, double eps, std::array<bool, 3> wanted,
                                         const Tensor& reserve) {
  if (impl_index < Registry::kFirstImplIndex) {
    return at::native::_batch_norm_impl_index_backward(impl_index, input, grad_output, weight,
                                                       running_mean, running_var, mean, invstd,
                                                       train, eps, wanted, reserve);
  }
  const Tensor contiguous = input.contiguous(input.suggest_memory_format());
  return backward(grad_output, contiguous, weight, {*mean, *invstd, reserve}, wanted,
                  *Registry::instance().find(impl_index));
}

/// Registers the kernels at the first conversion. Without a conversion, LibTorch is unchanged.
void register_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    // The Autograd keys handle all modes except inference mode, which also allows forward passes in
    // training mode.
    for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA,
                           c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
      // Never deleted, because that would unregister the kernels while other threads may be calling
      // them.
      auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      library->impl("_batch_norm_impl_index", TORCH_FN(batch_norm_impl_index));
      library->impl("_batch_norm_impl_index_backward", TORCH_FN(batch_norm_impl_index_backward));
    }
  });
}

}  // namespace

namespace detail {

SyncBatchNormHandle convert_sync_batchnorm(Model& model,
                                           std::shared_ptr<const BatchNormCollectives> group) {
  auto layers = find_batch_norm_layers(model);
  // A layer may occur in the model under several names.
  std::unordered_set<const at::TensorImpl*> seen;
  std::erase_if(layers, [&](const auto& layer) {
    return !seen.insert(layer->key.unsafeGetTensorImpl()).second;
  });
  std::vector<Tensor> keys;
  for (const auto& layer : layers) {
    layer->group = group;
    keys.push_back(layer->key);
  }
  register_kernels();
  Registry::instance().add(layers);
  return SyncBatchNormHandle(std::move(keys));
}

}  // namespace detail

SyncBatchNormHandle convert_sync_batchnorm(Model& model,
                                           std::shared_ptr<const ProcessGroup> group) {
  LINKBOY_CHECK(group != nullptr, "the process group is null; pass the group to normalise over.");
  if (group->size() == 1) return {};
  auto collectives = std::make_shared<BatchNormCollectives>();
  collectives->all_gather = [group](const Tensor& tensor) { return group->all_gather(tensor); };
  collectives->all_reduce = [group](const Tensor& tensor) { group->all_reduce(tensor); };
  return detail::convert_sync_batchnorm(model, std::move(collectives));
}

SyncBatchNormHandle& SyncBatchNormHandle::operator=(SyncBatchNormHandle&& other) noexcept {
  SyncBatchNormHandle moved(std::move(other));
  std::swap(keys_, moved.keys_);
  return *this;
}

SyncBatchNormHandle::~SyncBatchNormHandle() {
  if (!keys_.empty()) Registry::instance().remove(keys_);
}

}  // namespace linkboy
