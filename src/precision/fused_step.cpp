// Collects the parameters that one fused kernel can update together, and calls the kernels.

#include "precision/fused_step.hpp"

#include <c10/util/ScopeExit.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <optional>
#include <typeinfo>

#include "checkpoint/optimizer_tensors.hpp"
#include "checkpoint/python_optimizer_formats.hpp"

namespace linkboy {
namespace {

namespace formats = python_optimizer_formats;
using at::Tensor;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;
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

using VisitPart = c10::function_ref<void(const Tensor& parameter, Tensor& part)>;

struct PartVisitor {
  void step(int64_t) const {}
  void operator()(const char*, Tensor& part) const { visit(parameter, part); }
  void optional(const char*, Tensor& part, bool) const { visit(parameter, part); }

  const Tensor& parameter;
  VisitPart visit;
};

template <class Layout>
void visit_parts(const OptimizerParamGroup& group, const Tensor& parameter,
                 OptimizerParamState& state, VisitPart visit) {
  Layout::visit_state(static_cast<typename Layout::ParamState&>(state),
                      static_cast<const typename Layout::Options&>(group.options()),
                      PartVisitor{parameter, visit});
}

/// Starts a part of a parameter's state as zeros.
void start(Tensor& part, const Tensor& parameter) {
  if (!part.defined()) part = at::zeros_like(parameter, at::MemoryFormat::Preserve);
}

/// The arguments in the form that the kernels accept.
struct Scaling {
  std::optional<Tensor> grad_scale, found_inf;
};

// For each class of optimizers, `prepare` makes the state of a parameter, which `state_of` returns,
// ready for the update and adds both to a bucket, and `update` updates a bucket.

/// Adam and AdamW.
template <class Options>
void prepare(const Options& options, const Tensor& parameter, auto state_of, Buckets& buckets) {
  auto& state = state_of();
  start(state.exp_avg(), parameter);
  start(state.exp_avg_sq(), parameter);
  if (options.amsgrad()) start(state.max_exp_avg_sq(), parameter);
  state.step(state.step() + 1);
  buckets.add(
      parameter, state.step(),
      {state.exp_avg(), state.exp_avg_sq(), options.amsgrad() ? state.max_exp_avg_sq() : Tensor()});
}

template <class Options>
void update(const Options& options, Bucket& bucket, const Scaling& scaling) {
  constexpr bool kIsDecoupled = std::same_as<Options, torch::optim::AdamWOptions>;
  const auto kernel = kIsDecoupled ? at::_ops::_fused_adamw_::call : at::_ops::_fused_adam_::call;
  kernel(bucket.parameters, bucket.gradients, bucket.state[0], bucket.state[1], bucket.state[2],
         bucket.steps(), options.lr(), std::get<0>(options.betas()), std::get<1>(options.betas()),
         options.weight_decay(), options.eps(), options.amsgrad(),
         /*maximize=*/false, scaling.grad_scale, scaling.found_inf);
}

void prepare(const torch::optim::SGDOptions& options, const Tensor& parameter, auto state_of,
             Buckets& buckets) {
  if (options.momentum() == 0.0) return buckets.add(parameter, 2, {});
  Tensor& momentum = state_of().momentum_buffer();
  const bool is_first = !momentum.defined();
  if (is_first) momentum = at::empty_like(parameter.grad(), at::MemoryFormat::Preserve);
  buckets.add(parameter, is_first ? 1 : 2, {momentum});
}

void update(const torch::optim::SGDOptions& options, Bucket& bucket, const Scaling& scaling) {
  at::_fused_sgd_(bucket.parameters, bucket.gradients, bucket.state[0], options.weight_decay(),
                  options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                  /*maximize=*/false, /*is_first_step=*/bucket.num_updates == 1, scaling.grad_scale,
                  scaling.found_inf);
}

void prepare(const torch::optim::AdagradOptions& options, const Tensor& parameter, auto state_of,
             Buckets& buckets) {
  auto& state = state_of();
  if (!state.sum().defined()) {  // for a group that was added later
    state.sum(
        at::full_like(parameter, options.initial_accumulator_value(), at::MemoryFormat::Preserve));
  }
  state.step(state.step() + 1);
  buckets.add(parameter, state.step(), {state.sum()});
}

void update(const torch::optim::AdagradOptions& options, Bucket& bucket, const Scaling& scaling) {
  at::_fused_adagrad_(bucket.parameters, bucket.gradients, bucket.state[0], bucket.steps(),
                      options.lr(), options.lr_decay(), options.weight_decay(), options.eps(),
                      /*maximize=*/false, scaling.grad_scale, scaling.found_inf);
}

void prepare(const torch::optim::RMSpropOptions& options, const Tensor& parameter, auto state_of,
             Buckets& buckets) {
  auto& state = state_of();
  const bool has_momentum = options.momentum() > 0.0;
  start(state.square_avg(), parameter);
  if (has_momentum) start(state.momentum_buffer(), parameter);
  if (options.centered()) start(state.grad_avg(), parameter);
  state.step(state.step() + 1);
  buckets.add(parameter, 0,
              {state.square_avg(), has_momentum ? state.momentum_buffer() : Tensor(),
               options.centered() ? state.grad_avg() : Tensor()});
}

/// Uses multi-tensor operations, because LibTorch does not have a fused kernel for RMSprop.
void update(const torch::optim::RMSpropOptions& options, Bucket& bucket, const Scaling&) {
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
  if (options.momentum() > 0.0) {
    at::_foreach_mul_(momentum_buffers, options.momentum());
    at::_foreach_addcdiv_(momentum_buffers, gradients, averages);
    at::_foreach_add_(bucket.parameters, momentum_buffers, -options.lr());
  } else {
    at::_foreach_addcdiv_(bucket.parameters, gradients, averages, -options.lr());
  }
}

/// Updates one group. Returns whether the kernels handled every gradient.
template <class Layout>
bool step_group(Optimizer& optimizer, const OptimizerParamGroup& group, const Scaling& scaling) {
  using State = typename Layout::ParamState;
  const auto& options = static_cast<const typename Layout::Options&>(group.options());
  Buckets buckets(group.params().size());
  const bool took_all = for_each_fusable(group, [&](const Tensor& parameter) {
    const auto state_of = [&]() -> State& {
      auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
      if (!slot) slot = std::make_unique<State>();
      visit_parts<Layout>(group, parameter, *slot, follow_parameter);
      return static_cast<State&>(*slot);
    };
    prepare(options, parameter, state_of, buckets);
  });
  for (Bucket& bucket : buckets) update(options, bucket, scaling);
  return took_all;
}

// The optimizer as a whole.

/// Calls `work` with the layout of an optimizer that `fused_step` handles. Returns false for all
/// other classes, including subclasses, because a subclass can override `step`.
template <class Work>
bool with_handled_layout(const Optimizer& optimizer, Work work) {
  bool is_handled = false;
  formats::with_layout(optimizer, [&]<class Layout>(Layout layout) {
    if constexpr (!std::same_as<Layout, formats::LbfgsLayout>) {
      is_handled = true;
      work(layout);
    }
  });
  return is_handled;
}

bool is_handled(const Optimizer& optimizer) {
  return with_handled_layout(optimizer, [](auto) {});
}

bool has_fused_kernel(const Optimizer& optimizer) {
  return is_handled(optimizer) && typeid(optimizer) != typeid(torch::optim::RMSprop);
}

/// Whether `holds` returns true for each parameter that has a gradient, and its group.
template <class Predicate>
bool all_with_gradient(const Optimizer& optimizer, Predicate holds) {
  for (const auto& group : optimizer.param_groups()) {
    for (const Tensor& parameter : group.params()) {
      if (parameter.grad().defined() && !holds(parameter, group)) return false;
    }
  }
  return true;
}

/// Calls the optimizer's own `step` for the gradients that the kernels do not accept. Hides all
/// other gradients from it.
void step_what_is_left(Optimizer& optimizer) {
  std::vector<std::pair<Tensor, Tensor>> hidden;
  const auto restore = c10::make_scope_exit([&hidden] {
    for (auto& [parameter, gradient] : hidden) parameter.mutable_grad() = std::move(gradient);
  });
  for (const auto& group : optimizer.param_groups()) {
    for_each_fusable(group, [&hidden](const Tensor& parameter) {
      hidden.emplace_back(parameter, std::exchange(parameter.mutable_grad(), Tensor()));
    });
  }
  optimizer.step();
}

/// Calls `work` with the state of `parameter`, if it has one that counts updates.
template <class Work>
void with_counting_state(const Optimizer& optimizer, void* parameter, Work work) {
  const auto found = optimizer.state().find(parameter);
  if (found == optimizer.state().end()) return;
  with_handled_layout(optimizer, [&]<class Layout>(Layout) {
    using State = typename Layout::ParamState;
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
  for_each_state_tensor(optimizer, follow_parameter);
}

void for_each_state_tensor(const Optimizer& optimizer, VisitPart visit) {
  with_handled_layout(optimizer, [&]<class Layout>(Layout) {
    for (const auto& group : optimizer.param_groups()) {
      for (const Tensor& parameter : group.params()) {
        const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
        if (found == optimizer.state().end()) continue;
        visit_parts<Layout>(group, parameter, *found->second, visit);
      }
    }
  });
}

FusedGradients fused_step(Optimizer& optimizer, const GradientScaling& scaling) {
  const at::NoGradGuard no_grad;
  Scaling for_kernels;
  if (scaling.grad_scale.defined()) for_kernels.grad_scale = scaling.grad_scale;
  if (scaling.found_inf.defined()) for_kernels.found_inf = scaling.found_inf;
  bool took_all = true;
  const bool is_known = with_handled_layout(optimizer, [&]<class Layout>(Layout) {
    for (const auto& group : optimizer.param_groups()) {
      took_all = step_group<Layout>(optimizer, group, for_kernels) && took_all;
    }
  });
  if (!is_known) return FusedGradients::none;
  if (took_all) return FusedGradients::all;
  step_what_is_left(optimizer);
  return FusedGradients::some;
}

bool has_gradient_without_kernel(const Optimizer& optimizer) {
  return is_handled(optimizer) && !all_with_gradient(optimizer, [](const Tensor& parameter, auto&) {
           return is_fusable(parameter);
         });
}

bool is_fused_in_python(const Optimizer& optimizer, const OptimizerParamGroup& group) {
  const bool is_adagrad = typeid(optimizer) == typeid(torch::optim::Adagrad);
  const auto is_taken = [&](const Tensor& parameter) {
    // Python's Adagrad does not support fused=True on a GPU.
    const bool is_there = parameter.is_cpu() || (parameter.is_cuda() && !is_adagrad);
    return is_there && at::isFloatingType(parameter.scalar_type()) &&
           parameter.layout() == at::kStrided;
  };
  return has_fused_kernel(optimizer) &&
         std::all_of(group.params().begin(), group.params().end(), is_taken);
}

bool supports_grad_scale(const Optimizer& optimizer) {
  std::optional<c10::Device> device;
  return has_fused_kernel(optimizer) &&
         all_with_gradient(optimizer, [&device](const Tensor& parameter, auto&) {
           if (!device) device = parameter.device();
           return is_fusable(parameter) && parameter.device() == *device;
         });
}

bool takes_found_inf(const Optimizer& optimizer) {
  const auto has_stepped = [&](const Tensor& parameter, const OptimizerParamGroup& group) {
    const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&group.options());
    if (sgd != nullptr && sgd->momentum() == 0.0) return true;  // it does not have a state
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) return false;
    const auto* state = dynamic_cast<const torch::optim::SGDParamState*>(found->second.get());
    return state == nullptr || state->momentum_buffer().defined();
  };
  return supports_grad_scale(optimizer) && all_with_gradient(optimizer, has_stepped);
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
