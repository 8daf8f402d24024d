#include "precision/fused_step.hpp"

#include <ATen/ATen.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <typeinfo>

namespace linkboy {
namespace {

using at::Tensor;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;
using Tensors = std::vector<Tensor>;

bool is_fusable(const Tensor& parameter) {
  const Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return true;  // takes no part in this update
  return (parameter.is_cpu() || parameter.is_cuda()) &&
         at::isFloatingType(parameter.scalar_type()) && gradient.layout() == at::kStrided &&
         gradient.scalar_type() == parameter.scalar_type() &&
         gradient.device() == parameter.device();
}

bool is_fusable(const Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (!is_fusable(parameter)) return false;
    }
  }
  return true;
}

/// The parameter's state, made at its first update.
template <class State>
State& state_of(Optimizer& optimizer, const Tensor& parameter) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!state) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

/// Tensors that one kernel may take together: same device, dtype and number of updates behind
/// them.
struct AdamBucket {
  c10::Device device;
  at::ScalarType dtype;
  int64_t step;
  Tensors parameters, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs;
};

AdamBucket& bucket_for(std::vector<AdamBucket>& buckets, const Tensor& parameter, int64_t step,
                       std::size_t expected_size) {
  for (auto& bucket : buckets) {
    if (bucket.step == step && bucket.dtype == parameter.scalar_type() &&
        bucket.device == parameter.device()) {
      return bucket;
    }
  }
  auto& bucket = buckets.emplace_back(
      AdamBucket{parameter.device(), parameter.scalar_type(), step, {}, {}, {}, {}, {}});
  for (auto* list :
       {&bucket.parameters, &bucket.gradients, &bucket.exp_avgs, &bucket.exp_avg_sqs}) {
    list->reserve(expected_size);
  }
  return bucket;
}

/// Adam and AdamW differ in one kernel only.
template <class Options, class State, class Kernel>
void step_adam_group(Optimizer& optimizer, OptimizerParamGroup& group, Kernel kernel) {
  const auto& options = static_cast<const Options&>(group.options());
  std::vector<AdamBucket> buckets;
  for (const auto& parameter : group.params()) {
    const Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    State& state = state_of<State>(optimizer, parameter);
    if (!state.exp_avg().defined()) {
      state.exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
      state.exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    }
    if (options.amsgrad() && !state.max_exp_avg_sq().defined()) {
      state.max_exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    }
    state.step(state.step() + 1);
    AdamBucket& bucket = bucket_for(buckets, parameter, state.step(), group.params().size());
    bucket.parameters.push_back(parameter);
    bucket.gradients.push_back(gradient);
    bucket.exp_avgs.push_back(state.exp_avg());
    bucket.exp_avg_sqs.push_back(state.exp_avg_sq());
    if (options.amsgrad()) bucket.max_exp_avg_sqs.push_back(state.max_exp_avg_sq());
  }
  for (auto& bucket : buckets) {
    // The kernels want a step tensor for each parameter and only read it: one serves them all.
    const Tensors steps(bucket.parameters.size(),
                        at::full({}, static_cast<double>(bucket.step),
                                 at::TensorOptions(bucket.device).dtype(at::kFloat)));
    kernel(bucket.parameters, bucket.gradients, bucket.exp_avgs, bucket.exp_avg_sqs,
           bucket.max_exp_avg_sqs, steps, options.lr(), std::get<0>(options.betas()),
           std::get<1>(options.betas()), options.weight_decay(), options.eps(), options.amsgrad(),
           /*maximize=*/false, /*grad_scale=*/std::nullopt, /*found_inf=*/std::nullopt);
  }
}

struct SgdBucket {
  c10::Device device;
  at::ScalarType dtype;
  bool is_first_step;
  Tensors parameters, gradients, momentum_buffers;
};

void step_sgd_group(Optimizer& optimizer, OptimizerParamGroup& group) {
  using torch::optim::SGDParamState;
  const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
  const bool has_momentum = options.momentum() != 0.0;
  std::vector<SgdBucket> buckets;
  for (const auto& parameter : group.params()) {
    const Tensor& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    Tensor momentum_buffer;
    bool is_first_step = false;
    if (has_momentum) {
      auto& state = state_of<SGDParamState>(optimizer, parameter);
      is_first_step = !state.momentum_buffer().defined();
      if (is_first_step) {
        state.momentum_buffer(at::empty_like(gradient, at::MemoryFormat::Preserve));
      }
      momentum_buffer = state.momentum_buffer();
    }
    auto bucket = std::find_if(buckets.begin(), buckets.end(), [&](const SgdBucket& other) {
      return other.is_first_step == is_first_step && other.dtype == parameter.scalar_type() &&
             other.device == parameter.device();
    });
    if (bucket == buckets.end()) {
      bucket = buckets.insert(
          buckets.end(),
          SgdBucket{parameter.device(), parameter.scalar_type(), is_first_step, {}, {}, {}});
    }
    bucket->parameters.push_back(parameter);
    bucket->gradients.push_back(gradient);
    if (has_momentum) bucket->momentum_buffers.push_back(momentum_buffer);
  }
  for (auto& bucket : buckets) {
    at::_fused_sgd_(bucket.parameters, bucket.gradients, bucket.momentum_buffers,
                    options.weight_decay(), options.momentum(), options.lr(), options.dampening(),
                    options.nesterov(), /*maximize=*/false, bucket.is_first_step);
  }
}

}  // namespace

bool fused_step(Optimizer& optimizer) {
  // A subclass may have a step of its own, so only the very class will do.
  const auto& type = typeid(optimizer);
  const bool is_sgd = type == typeid(torch::optim::SGD);
  const bool is_adam = type == typeid(torch::optim::Adam);
  const bool is_adamw = type == typeid(torch::optim::AdamW);
  if (!(is_sgd || is_adam || is_adamw) || !is_fusable(optimizer)) return false;

  const at::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups()) {
    if (is_sgd) {
      step_sgd_group(optimizer, group);
    } else if (is_adam) {
      step_adam_group<torch::optim::AdamOptions, torch::optim::AdamParamState>(
          optimizer, group, [](auto&&... arguments) {
            at::_fused_adam_(std::forward<decltype(arguments)>(arguments)...);
          });
    } else {
      step_adam_group<torch::optim::AdamWOptions, torch::optim::AdamWParamState>(
          optimizer, group, [](auto&&... arguments) {
            at::_fused_adamw_(std::forward<decltype(arguments)>(arguments)...);
          });
    }
  }
  return true;
}

}  // namespace linkboy
