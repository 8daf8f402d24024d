// Collects the parameters that one fused kernel can update together, and calls the kernels.

#include "precision/fused_step.hpp"

#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <array>
#include <typeinfo>

#include "checkpoint/optimizer_tensors.hpp"

namespace linkboy {
namespace {

using at::Tensor;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using Tensors = std::vector<Tensor>;

/// Whether a kernel accepts the parameter. Kernels of other backends may be missing or round
/// differently, but the optimizer's own step works on all devices.
bool is_fusable(const Tensor& parameter) {
  const Tensor& gradient = parameter.grad();
  return (parameter.is_cpu() || parameter.is_cuda()) &&
         at::isFloatingType(parameter.scalar_type()) && parameter.layout() == at::kStrided &&
         gradient.layout() == at::kStrided && gradient.scalar_type() == parameter.scalar_type() &&
         gradient.device() == parameter.device() && parameter.is_non_overlapping_and_dense() &&
         have_same_layout(gradient, parameter);
}

/// Parameters that one kernel call can update together, with their gradients and states. Each entry
/// of `state` contains the same part of the state of all parameters.
struct Bucket {
  c10::Device device;
  at::ScalarType dtype;
  int64_t num_updates;  // of each parameter, including this one
  Tensors parameters, gradients;
  std::array<Tensors, 3> state;

  /// Returns a step tensor for each parameter, as the kernels require. The kernels only read it, so
  /// all parameters share one tensor.
  Tensors steps() const {
    const auto options = at::TensorOptions(device).dtype(at::kFloat);
    return Tensors(parameters.size(), at::full({}, static_cast<double>(num_updates), options));
  }
};

class Buckets {
 public:
  explicit Buckets(std::size_t expected_size) : expected_size_(expected_size) {}

  void add(const Tensor& parameter, int64_t num_updates, std::initializer_list<Tensor> state) {
    Bucket& bucket = find(parameter, num_updates);
    bucket.parameters.push_back(parameter);
    bucket.gradients.push_back(parameter.grad());
    for (std::size_t i = 0; i < state.size(); ++i) {
      const Tensor& part = state.begin()[i];
      if (part.defined()) bucket.state[i].push_back(part);
    }
  }

  std::vector<Bucket>::iterator begin() { return buckets_.begin(); }
  std::vector<Bucket>::iterator end() { return buckets_.end(); }

 private:
  Bucket& find(const Tensor& parameter, int64_t num_updates) {
    for (auto& bucket : buckets_) {
      if (bucket.num_updates == num_updates && bucket.dtype == parameter.scalar_type() &&
          bucket.device == parameter.device()) {
        return bucket;
      }
    }
    Bucket& bucket = buckets_.emplace_back(
        Bucket{parameter.device(), parameter.scalar_type(), num_updates, {}, {}, {}});
    for (Tensors* list : {&bucket.parameters, &bucket.gradients, &bucket.state[0]}) {
      list->reserve(expected_size_);
    }
    return bucket;
  }

  std::size_t expected_size_;
  std::vector<Bucket> buckets_;
};

/// Calls `work` with each parameter that has a gradient and a kernel. Returns whether there is a
/// kernel for every gradient of the group.
template <class Work>
bool for_each_fusable(const OptimizerParamGroup& group, Work work) {
  bool are_all_fusable = true;
  for (const Tensor& parameter : group.params()) {
    if (!parameter.grad().defined()) continue;
    if (is_fusable(parameter)) {
      work(parameter);
    } else {
      are_all_fusable = false;
    }
  }
  return are_all_fusable;
}

/// Returns the parameter's state, which is created at its first update. If the model was moved or
/// converted to another memory format after that, converts the state, too.
template <class State>
State& state_of(Optimizer& optimizer, const Tensor& parameter) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!slot) slot = std::make_unique<State>();
  auto& state = static_cast<State&>(*slot);
  for (Tensor* part : tensors_of(state)) follow_parameter(parameter, *part);
  return state;
}

Tensor zeros_of(const Tensor& parameter) {
  return at::zeros_like(parameter, at::MemoryFormat::Preserve);
}

/// The arguments in the form that the kernels accept.
struct Scaling {
  std::optional<Tensor> grad_scale, found_inf;
};

// Each function updates one group and returns whether the kernels handled every gradient.

/// Adam and AdamW differ only in the kernel.
template <class Options, class State, class Kernel>
bool step_adam_group(Optimizer& optimizer, OptimizerParamGroup& group, const Scaling& scaling,
                     Kernel kernel) {
  const auto& options = static_cast<const Options&>(group.options());
  Buckets buckets(group.params().size());
  const bool took_all = for_each_fusable(group, [&](const Tensor& parameter) {
    State& state = state_of<State>(optimizer, parameter);
    if (!state.exp_avg().defined()) {
      state.exp_avg(zeros_of(parameter));
      state.exp_avg_sq(zeros_of(parameter));
    }
    if (options.amsgrad() && !state.max_exp_avg_sq().defined()) {
      state.max_exp_avg_sq(zeros_of(parameter));
    }
    state.step(state.step() + 1);
    buckets.add(parameter, state.step(),
                {state.exp_avg(), state.exp_avg_sq(),
                 options.amsgrad() ? state.max_exp_avg_sq() : Tensor()});
  });
  for (Bucket& bucket : buckets) {
    kernel(bucket.parameters, bucket.gradients, bucket.state[0], bucket.state[1], bucket.state[2],
           bucket.steps(), options.lr(), std::get<0>(options.betas()), std::get<1>(options.betas()),
           options.weight_decay(), options.eps(), options.amsgrad(),
           /*maximize=*/false, scaling.grad_scale, scaling.found_inf);
  }
  return took_all;
}

bool step_group(Optimizer& optimizer, OptimizerParamGroup& group, const Scaling& scaling,
                torch::optim::Adam*) {
  return step_adam_group<torch::optim::AdamOptions, torch::optim::AdamParamState>(
      optimizer, group, scaling, [](auto&&... arguments) {
        at::_fused_adam_(std::forward<decltype(arguments)>(arguments)...);
      });
}

bool step_group(Optimizer& optimizer, OptimizerParamGroup& group, const Scaling& scaling,
                torch::optim::AdamW*) {
  return step_adam_group<torch::optim::AdamWOptions, torch::optim::AdamWParamState>(
      optimizer, group, scaling, [](auto&&... arguments) {
        at::_fused_adamw_(std::forward<decltype(arguments)>(arguments)...);
      });
}

bool step_group(Optimizer& optimizer, OptimizerParamGroup& group, const Scaling& scaling,
                torch::optim::SGD*) {
  const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
  Buckets buckets(group.params().size());
  const bool took_all = for_each_fusable(group, [&](const Tensor& parameter) {
    if (options.momentum() == 0.0) {
      buckets.add(parameter, 2, {});
      return;
    }
    auto& state = state_of<torch::optim::SGDParamState>(optimizer, parameter);
    const bool is_first = !state.momentum_buffer().defined();
    if (is_first) {
      state.momentum_buffer(at::empty_like(parameter.grad(), at::MemoryFormat::Preserve));
    }
    buckets.add(parameter, is_first ? 1 : 2, {state.momentum_buffer()});
  });
  for (Bucket& bucket : buckets) {
    at::_fused_sgd_(bucket.parameters, bucket.gradients, bucket.state[0], options.weight_decay(),
                    options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                    /*maximize=*/false, /*is_first_step=*/bucket.num_updates == 1,
                    scaling.grad_scale, scaling.found_inf);
  }
  return took_all;
}

bool step_group(Optimizer& optimizer, OptimizerParamGroup& group, const Scaling& scaling,
                torch::optim::Adagrad*) {
  const auto& options = static_cast<const torch::optim::AdagradOptions&>(group.options());
  Buckets buckets(group.params().size());
  const bool took_all = for_each_fusable(group, [&](const Tensor& parameter) {
    auto& state = state_of<torch::optim::AdagradParamState>(optimizer, parameter);
    if (!state.sum().defined()) {  // for a group that was added later
      state.sum(at::full_like(parameter, options.initial_accumulator_value(),
                              at::MemoryFormat::Preserve));
    }
    state.step(state.step() + 1);
    buckets.add(parameter, state.step(), {state.sum()});
  });
  for (Bucket& bucket : buckets) {
    at::_fused_adagrad_(bucket.parameters, bucket.gradients, bucket.state[0], bucket.steps(),
                        options.lr(), options.lr_decay(), options.weight_decay(), options.eps(),
                        /*maximize=*/false, scaling.grad_scale, scaling.found_inf);
  }
  return took_all;
}

/// Uses multi-tensor operations, because LibTorch does not have a fused kernel for RMSprop.
bool step_group(Optimizer& optimizer, OptimizerParamGroup& group, const Scaling&,
                torch::optim::RMSprop*) {
  const auto& options = static_cast<const torch::optim::RMSpropOptions&>(group.options());
  const bool has_momentum = options.momentum() > 0.0;
  Buckets buckets(group.params().size());
  const bool took_all = for_each_fusable(group, [&](const Tensor& parameter) {
    auto& state = state_of<torch::optim::RMSpropParamState>(optimizer, parameter);
    if (!state.square_avg().defined()) state.square_avg(zeros_of(parameter));
    if (has_momentum && !state.momentum_buffer().defined()) {
      state.momentum_buffer(zeros_of(parameter));
    }
    if (options.centered() && !state.grad_avg().defined()) state.grad_avg(zeros_of(parameter));
    state.step(state.step() + 1);
    buckets.add(parameter, 0,
                {state.square_avg(), has_momentum ? state.momentum_buffer() : Tensor(),
                 options.centered() ? state.grad_avg() : Tensor()});
  });
  for (Bucket& bucket : buckets) {
    const auto& [square_avgs, momentum_buffers, grad_avgs] = bucket.state;
    Tensors gradients = bucket.gradients;
    if (options.weight_decay() != 0.0) {
      gradients = at::_foreach_add(gradients, bucket.parameters, options.weight_decay());
    }
    at::_foreach_mul_(square_avgs, options.alpha());
    at::_foreach_addcmul_(square_avgs, gradients, gradients, 1.0 - options.alpha());
    Tensors averages;
    if (options.centered()) {
      at::_foreach_lerp_(grad_avgs, gradients, 1.0 - options.alpha());
      averages = at::_foreach_addcmul(square_avgs, grad_avgs, grad_avgs, -1.0);
      at::_foreach_sqrt_(averages);
    } else {
      averages = at::_foreach_sqrt(square_avgs);
    }
    at::_foreach_add_(averages, options.eps());
    if (has_momentum) {
      at::_foreach_mul_(momentum_buffers, options.momentum());
      at::_foreach_addcdiv_(momentum_buffers, gradients, averages);
      at::_foreach_add_(bucket.parameters, momentum_buffers, -options.lr());
    } else {
      at::_foreach_addcdiv_(bucket.parameters, gradients, averages, -options.lr());
    }
  }
  return took_all;
}

// The optimizer as a whole.

/// Calls `work` with a null pointer of the optimizer's class. Returns false for all other classes,
/// including subclasses, because a subclass can override `step`.
template <class Work>
bool with_class_of(const Optimizer& optimizer, Work work) {
  const auto& type = typeid(optimizer);
  const auto try_class = [&]<class Class>(Class* none) {
    if (type != typeid(Class)) return false;
    work(none);
    return true;
  };
  return try_class(static_cast<torch::optim::SGD*>(nullptr)) ||
         try_class(static_cast<torch::optim::Adam*>(nullptr)) ||
         try_class(static_cast<torch::optim::AdamW*>(nullptr)) ||
         try_class(static_cast<torch::optim::Adagrad*>(nullptr)) ||
         try_class(static_cast<torch::optim::RMSprop*>(nullptr));
}

/// Calls the optimizer's own `step` for the gradients that the kernels do not accept. Hides all
/// other gradients from it.
void step_what_is_left(Optimizer& optimizer) {
  std::vector<std::pair<Tensor, Tensor>> hidden;
  for (auto& group : optimizer.param_groups()) {
    for_each_fusable(group, [&hidden](const Tensor& parameter) {
      hidden.emplace_back(parameter, std::exchange(parameter.mutable_grad(), Tensor()));
    });
  }
  const auto restore = [&hidden] {
    for (auto& [parameter, gradient] : hidden) parameter.mutable_grad() = std::move(gradient);
  };
  try {
    optimizer.step();
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

// Each returns a null pointer of the class of a parameter's state.
torch::optim::SGDParamState* state_class(torch::optim::SGD*) { return nullptr; }
torch::optim::AdamParamState* state_class(torch::optim::Adam*) { return nullptr; }
torch::optim::AdamWParamState* state_class(torch::optim::AdamW*) { return nullptr; }
torch::optim::AdagradParamState* state_class(torch::optim::Adagrad*) { return nullptr; }
torch::optim::RMSpropParamState* state_class(torch::optim::RMSprop*) { return nullptr; }

bool has_stepped(const Optimizer& optimizer, const Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return false;
  const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(found->second.get());
  return sgd == nullptr || sgd->momentum_buffer().defined();
}

/// Calls `work` with the state of `parameter`, if it has one that counts updates.
template <class Work>
void with_counting_state(const Optimizer& optimizer, void* parameter, Work work) {
  const auto found = optimizer.state().find(parameter);
  if (found == optimizer.state().end()) return;
  with_class_of(optimizer, [&](auto* kind) {
    using State = std::remove_pointer_t<decltype(state_class(kind))>;
    if constexpr (requires(State state) { state.step(); }) {
      work(static_cast<State&>(*found->second));
    }
  });
}

/// Moves the state of an LBFGS, which stores a single state under its first parameter.
void move_state_of_lbfgs(const Optimizer& optimizer) {
  const Tensor& parameter = optimizer.param_groups().at(0).params().at(0);
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return;
  auto& state = static_cast<torch::optim::LBFGSParamState&>(*found->second);
  const auto move = [&](Tensor& part) {
    if (part.defined()) part = part.to(parameter.device());
  };
  for (Tensor* part : {&state.d(), &state.H_diag(), &state.prev_flat_grad()}) move(*part);
  for (auto* parts : {&state.old_dirs(), &state.old_stps(), &state.ro()}) {
    for (Tensor& part : *parts) move(part);
  }
  if (state.al()) {
    for (Tensor& part : *state.al()) move(part);
  }
}

}  // namespace

void move_state_to_parameters(const Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  if (typeid(optimizer) == typeid(torch::optim::LBFGS)) move_state_of_lbfgs(optimizer);
  const auto move = [&]<class State>(const OptimizerParamGroup& group, State*) {
    for (const Tensor& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      for (Tensor* part : tensors_of(static_cast<State&>(*found->second))) {
        follow_parameter(parameter, *part);
      }
    }
  };
  with_class_of(optimizer, [&](auto* kind) {
    for (const auto& group : optimizer.param_groups()) move(group, state_class(kind));
  });
}

FusedGradients fused_step(Optimizer& optimizer, const GradientScaling& scaling) {
  const at::NoGradGuard no_grad;
  Scaling for_kernels;
  if (scaling.grad_scale.defined()) for_kernels.grad_scale = scaling.grad_scale;
  if (scaling.found_inf.defined()) for_kernels.found_inf = scaling.found_inf;
  bool took_all = true;
  const bool is_known = with_class_of(optimizer, [&](auto* kind) {
    for (auto& group : optimizer.param_groups()) {
      took_all = step_group(optimizer, group, for_kernels, kind) && took_all;
    }
  });
  if (!is_known) return FusedGradients::none;
  if (took_all) return FusedGradients::all;
  step_what_is_left(optimizer);
  return FusedGradients::some;
}

bool has_gradient_without_kernel(const Optimizer& optimizer) {
  if (!with_class_of(optimizer, [](auto*) {})) return false;
  for (const auto& group : optimizer.param_groups()) {
    for (const Tensor& parameter : group.params()) {
      if (parameter.grad().defined() && !is_fusable(parameter)) return true;
    }
  }
  return false;
}

bool is_fused_in_python(const Optimizer& optimizer, const OptimizerParamGroup& group) {
  const auto& type = typeid(optimizer);
  const bool is_adagrad = type == typeid(torch::optim::Adagrad);
  const bool has_kernel =
      with_class_of(optimizer, [](auto*) {}) && type != typeid(torch::optim::RMSprop);
  const auto is_taken = [&](const Tensor& parameter) {
    // Python's Adagrad does not support fused=True on a GPU.
    const bool is_there = parameter.is_cpu() || (parameter.is_cuda() && !is_adagrad);
    return is_there && at::isFloatingType(parameter.scalar_type()) &&
           parameter.layout() == at::kStrided;
  };
  return has_kernel && std::all_of(group.params().begin(), group.params().end(), is_taken);
}

bool supports_grad_scale(const Optimizer& optimizer) {
  const bool has_kernel =
      with_class_of(optimizer, [](auto*) {}) && typeid(optimizer) != typeid(torch::optim::RMSprop);
  if (!has_kernel) return false;
  std::optional<c10::Device> device;
  for (const auto& group : optimizer.param_groups()) {
    for (const Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      if (!device) device = parameter.device();
      if (!is_fusable(parameter) || parameter.device() != *device) return false;
    }
  }
  return true;
}

bool takes_found_inf(const Optimizer& optimizer) {
  if (!supports_grad_scale(optimizer)) return false;
  const bool is_sgd = typeid(optimizer) == typeid(torch::optim::SGD);
  for (const auto& group : optimizer.param_groups()) {
    const bool has_no_state =
        is_sgd && static_cast<const torch::optim::SGDOptions&>(group.options()).momentum() == 0.0;
    if (has_no_state) continue;
    for (const Tensor& parameter : group.params()) {
      if (parameter.grad().defined() && !has_stepped(optimizer, parameter)) return false;
    }
  }
  return true;
}

UpdateCounts counts_of_updates(const Optimizer& optimizer) {
  UpdateCounts counts;
  for (const auto& group : optimizer.param_groups()) {
    for (const Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      with_counting_state(optimizer, parameter.unsafeGetTensorImpl(), [&](auto& state) {
        counts.emplace_back(parameter.unsafeGetTensorImpl(), state.step());
      });
    }
  }
  return counts;
}

void undo_step(const Optimizer& optimizer, const UpdateCounts& counts) {
  for (const auto& [parameter, count] : counts) {
    with_counting_state(optimizer, parameter, [count = count](auto& state) {
      if (state.step() == count) state.step(count - 1);
    });
  }
}

}  // namespace linkboy
