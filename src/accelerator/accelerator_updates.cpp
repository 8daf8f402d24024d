// The accumulation window, the backward pass and the update at its end.

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "accelerator/accelerator_implementation.hpp"
#include "accelerator/known_gradients.hpp"
#include "accelerator/trained_optimizer.hpp"
#include "distributed/process_group_implementation.hpp"
#include "linkboy/error.hpp"
#include "precision/fused_step.hpp"
#include "util/parameters.hpp"

namespace linkboy {
namespace {

/// Returns the dtype of the norm of the parameters' gradients; the same on every process.
at::ScalarType common_dtype(const std::vector<at::Tensor>& parameters) {
  if (parameters.empty()) return at::kFloat;
  at::ScalarType dtype = parameters.front().scalar_type();
  for (const auto& parameter : parameters) {
    dtype = c10::promoteTypes(dtype, parameter.scalar_type());
  }
  return c10::toRealValueType(dtype);
}

/// Returns the norm of the gradients of all ranks, of which each has a part.
at::Tensor norm_over(const ProcessGroup& group, const at::Tensor& mine, at::ScalarType dtype) {
  const at::Tensor sum = mine.to(dtype).to(at::kDouble).square();
  group.all_reduce(sum);
  return sum.sqrt().to(dtype);
}

/// LibTorch's LBFGS flattens the gradients with `view`, which rejects those of channels_last.
void make_gradients_contiguous(const torch::optim::Optimizer& optimizer) {
  for (const at::Tensor& parameter : parameters_of(optimizer)) {
    const at::Tensor& gradient = parameter.grad();
    if (gradient.defined() && !gradient.is_sparse() && !gradient.is_contiguous()) {
      parameter.mutable_grad() = gradient.contiguous();
    }
  }
}

}  // namespace

bool needs_closure(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr;
}

void Accelerator::set_gradient_accumulation_steps(int64_t steps) {
  LINKBOY_CHECK_OPTION(steps >= 1, "gradient_accumulation_steps is ", steps,
                       "; it must be at least 1. Use 1 to update after every batch.");
  impl_->gradient_accumulation_steps_ = steps;
}

std::shared_ptr<void> Accelerator::reserve() {
  LINKBOY_CHECK(!impl_->is_reserved_,
                "train was called while another Trainer is training with the same Accelerator. "
                "Give each its own Accelerator, or wait until the other run has ended.");
  impl_->is_reserved_ = true;
  // Afterwards, a loop that uses only the Accelerator may use it without update_scale.
  return {impl_.get(),
          [this](void*) { impl_->is_reserved_ = impl_->is_scale_updated_by_loop_ = false; }};
}

AccumulationWindow Accelerator::begin_micro_step(int64_t index, int64_t num_micro_steps,
                                                 bool calls_update_scale) {
  impl_->forget_steps();
  if (calls_update_scale) impl_->is_scale_updated_by_loop_ = true;
  impl_->window_.index = index % impl_->gradient_accumulation_steps_;
  impl_->window_.length = std::min(impl_->gradient_accumulation_steps_,
                                   num_micro_steps - (index - impl_->window_.index));
  if (impl_->window_.index == 0) {
    impl_->unsettled_.clear();
    if (impl_->shards_) impl_->shards_->begin_window();
    for (const auto& reducer : impl_->reducers_) reducer->begin_update();
  }
  return impl_->window_;
}

AccumulationWindow Accelerator::window() const { return impl_->window_; }

void Accelerator::backward(const at::Tensor& loss) {
  LINKBOY_CHECK(loss.defined() && loss.numel() == 1, "the loss is ",
                loss.defined() ? c10::str("a tensor of shape ", loss.sizes()) : "undefined",
                "; it must be a scalar. Reduce it over the batch, with mean() for example.");
  LINKBOY_CHECK(loss.requires_grad(),
                "the loss does not depend on a tensor that requires gradients; it must be computed "
                "from trainable parameters. Do not use detach() or item() on the way, and do not "
                "disable gradients (NoGradGuard, InferenceMode).");
  impl_->forget_steps();
  const bool is_plain =
      impl_->window_.length == 1 && !impl_->grad_scaler_ && impl_->reducers_.empty();
  if (is_plain && accumulate_known_gradients(loss)) return;
  // Skips the division if it changes nothing, which saves a node of the graph.
  const at::Tensor share = impl_->window_.length == 1 ? loss : loss / impl_->window_.length;
  if (GradScaler* scaler = grad_scaler()) {
    // Other optimizers may already have gradients for this update that were scaled by the current
    // scale.
    const bool is_within_update = impl_->is_scale_updated_by_loop_ || impl_->window_.index > 0;
    if (is_within_update) {
      scaler->collect_steps();
    } else if (!scaler->awaits_step()) {
      update_scale();
    }
  }
  const at::Tensor scaled = impl_->grad_scaler_ ? impl_->grad_scaler_->scale(share) : share;
  // Distributed gradients are reduced in each micro-step, because no process has room for whole
  // ones.
  const bool is_complete = impl_->window_.is_complete();
  if (impl_->reducers_.empty() || (!is_complete && !impl_->shards_)) return scaled.backward();
  const auto reducers = impl_->reducers_of(scaled);
  auto abandon = c10::make_scope_exit([&] {
    for (GradientReducer* reducer : reducers) reducer->abandon();
    if (impl_->shards_) impl_->shards_->abandon_backward();
  });
  for (GradientReducer* reducer : reducers) {
    if (is_complete) reducer->before_backward(scaled);
  }
  if (impl_->shards_) {
    std::vector<at::Tensor> reached;
    for (const GradientReducer* reducer : reducers) reducer->add_trained_to(reached);
    impl_->shards_->begin_backward(reached);
  }
  run_collective(*impl_->process_group_, "the averaging of the gradients",
                 [&] { scaled.backward(); });
  if (impl_->shards_) impl_->shards_->end_backward(impl_->distributed_.find_unused_parameters);
  for (GradientReducer* reducer : reducers) {
    if (is_complete) reducer->after_backward();
  }
  abandon.release();
}

std::vector<GradientReducer*> Accelerator::Implementation::reducers_of(
    const at::Tensor& loss) const {
  std::vector<GradientReducer*> reached;
  for (const auto& reducer : reducers_) {
    // With a single reducer, the graph does not need to be searched.
    if (reducers_.size() == 1 || reducer->contributes_to(loss)) reached.push_back(reducer.get());
  }
  return reached;
}

void Accelerator::unscale_gradients(torch::optim::Optimizer& optimizer) {
  GradScaler* const scaler = grad_scaler();
  if (scaler != nullptr && !scaler->has_unscaled(optimizer)) scaler->unscale(optimizer);
}

at::Tensor Accelerator::clip_grad_norm(const std::vector<at::Tensor>& parameters,
                                       double max_norm) const {
  LINKBOY_CHECK(max_norm > 0.0, "max_norm is ", max_norm, "; it must be positive.");
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  const auto norm_of = [&](const std::vector<at::Tensor>& parts) {
    if (parts.empty()) {
      return at::zeros({}, at::TensorOptions(impl_->device_).dtype(common_dtype(parameters)));
    }
    auto norms = at::_foreach_norm(parts, 2);
    // Parameters may be on several devices; their norms are moved to the first one.
    for (auto& norm : norms) norm = norm.to(norms.front().device());
    return at::linalg_vector_norm(at::stack(norms), 2);
  };
  at::Tensor total;
  if (impl_->zero_ && impl_->distributed_.zero_stage == 2) {
    // Each process has gradients only for its own parameters, and possibly for none.
    total = norm_over(*impl_->process_group_, norm_of(gradients), common_dtype(parameters));
  } else if (impl_->shards_) {
    std::vector<at::Tensor> rows, whole;
    for (const at::Tensor& parameter : parameters) {
      if (!parameter.grad().defined()) continue;
      (impl_->shards_->contains(parameter) ? rows : whole).push_back(parameter.grad());
    }
    const at::Tensor of_rows =
        norm_over(impl_->shards_->group(), norm_of(rows), common_dtype(parameters));
    total = at::linalg_vector_norm(at::stack({of_rows, norm_of(whole).to(of_rows.options())}), 2);
  } else {
    total = norm_of(gradients);
  }
  if (gradients.empty() || std::isinf(max_norm)) return total;
  // PyTorch's Python operator divides a number by a tensor by multiplying by the reciprocal. The
  // result of the C++ operator differs in the last bit.
  const at::Tensor coefficient = ((total + 1e-6).reciprocal() * max_norm).clamp_max(1.0);
  at::_foreach_mul_(gradients, coefficient);
  return total;
}

void Accelerator::clip_grad_value(const std::vector<at::Tensor>& parameters,
                                  double clip_value) const {
  LINKBOY_CHECK(clip_value > 0.0, "clip_value is ", clip_value, "; it must be positive.");
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  if (gradients.empty()) return;
  at::_foreach_clamp_min_(gradients, -clip_value);
  at::_foreach_clamp_max_(gradients, clip_value);
}

at::Tensor clip_gradients(Accelerator& accelerator, torch::optim::Optimizer& optimizer,
                          const RunConfig& config) {
  at::Tensor norm;
  if (!config.gradient_clip_value && !config.gradient_clip_norm) return norm;
  accelerator.unscale_gradients(optimizer);
  const auto parameters = parameters_of(optimizer);
  if (config.gradient_clip_value) {
    accelerator.clip_grad_value(parameters, *config.gradient_clip_value);
  }
  if (config.gradient_clip_norm) {
    norm = accelerator.clip_grad_norm(parameters, *config.gradient_clip_norm);
  }
  return norm;
}

StepOutcome Accelerator::optimizer_step(torch::optim::Optimizer& optimizer) {
  StepOutcome outcome;
  const auto check_needs_no_closure = [&] {
    LINKBOY_CHECK_OPTION(
        !needs_closure(optimizer),
        "the optimizer is an LBFGS, which evaluates the loss several times in a step. Call "
        "Accelerator::optimizer_step(optimizer, closure) with a closure that computes it.");
  };
  const auto make_step = [&] {
    if (impl_->grad_scaler_) {
      check_needs_no_closure();
      if (has_gradient_without_kernel(optimizer)) impl_->partly_fused_.insert(&optimizer);
      outcome = impl_->grad_scaler_->queue_step(optimizer);
      if (!outcome.is_known()) impl_->unsettled_.insert(&optimizer);
      return;
    }
    const FusedGradients fused = fused_step(optimizer);
    if (fused == FusedGradients::none) {
      check_needs_no_closure();
      optimizer.step();
    }
    if (fused == FusedGradients::some) impl_->partly_fused_.insert(&optimizer);
  };
  // All ranks must see an overflow in any gradient. If only one rank skipped an update, its
  // weights, its scale and its number of updates would differ from those of the others.
  if (impl_->zero_) unscale_gradients(optimizer);
  if (impl_->grad_scaler_ && !impl_->are_gradients_averaged()) {
    unscale_gradients(optimizer);
    impl_->grad_scaler_->share_overflow(optimizer, *impl_->mesh_->world());
  }
  if (impl_->zero_) {
    impl_->zero_->step(optimizer, make_step);
  } else if (impl_->shards_) {
    impl_->keep_own_rows(optimizer);
    impl_->shards_->with_rows(make_step);
  } else {
    make_step();
  }
  if (impl_->distributed_.local_sgd_interval > 0) impl_->average_weights(optimizer);
  impl_->outcome_of(optimizer).add(outcome);
  return outcome;
}

void Accelerator::optimizer_step(torch::optim::Optimizer& optimizer,
                                 const std::function<at::Tensor()>& closure) {
  LINKBOY_CHECK(closure, "the closure is empty; pass a function that computes the loss.");
  LINKBOY_CHECK_OPTION(!impl_->grad_scaler_,
                       "an optimizer with a closure does not work in fp16: its steps depend on "
                       "losses and gradients without a scale. Use Precision::fp32 or bf16.");
  LINKBOY_CHECK_OPTION(
      !impl_->zero_ && !impl_->shards_ && impl_->distributed_.local_sgd_interval == 0,
      "an optimizer with a closure needs all gradients, averaged over the processes, but ",
      impl_->distributed_.local_sgd_interval == 0 ? "zero_stage" : "local_sgd_interval",
      " is set. Leave it out.");
  optimizer.step([&] {
    const at::AutoGradMode with_gradients(true);
    const at::Tensor loss = closure();
    LINKBOY_CHECK(loss.defined() && loss.numel() == 1,
                  "the closure did not return a single number; return the mean loss of the "
                  "accumulation window.");
    make_gradients_contiguous(optimizer);
    return num_processes() == 1 ? loss.detach() : reduce(loss.detach(), ReduceOp::mean);
  });
}

bool Accelerator::Implementation::are_gradients_averaged() const {
  // In a mesh, processes that see the same batches have their own gradients.
  const bool have_same = mesh_->world()->size() == process_group_->size() && !shards_;
  return have_same && (process_group_->size() == 1 ||
                       (distributed_.local_sgd_interval == 0 && !distributed_.gradient_comm_hook));
}

void Accelerator::Implementation::average_weights(torch::optim::Optimizer& optimizer) {
  if (++num_steps_of(optimizer) % distributed_.local_sgd_interval != 0) return;
  process_group_->all_reduce(parameters_of(optimizer), ReduceOp::mean);
}

int64_t& Accelerator::Implementation::num_steps_of(const torch::optim::Optimizer& optimizer) {
  const auto place = std::find(stepped_.begin(), stepped_.end(), &optimizer) - stepped_.begin();
  if (place == std::ssize(stepped_)) stepped_.push_back(&optimizer);
  num_steps_.resize(std::max(num_steps_.size(), stepped_.size()));
  return num_steps_[place];
}

void Accelerator::skip_optimizer_step() {
  impl_->is_step_skipped_ = true;
  if (impl_->grad_scaler_) impl_->grad_scaler_->skip_steps();
}

void Accelerator::update_scale() {
  impl_->is_scale_updated_by_loop_ = false;
  if (impl_->grad_scaler_) impl_->grad_scaler_->update();
}

void Accelerator::Implementation::forget_steps() {
  steps_.clear();
  is_step_skipped_ = false;
}

StepOutcome& Accelerator::Implementation::outcome_of(const torch::optim::Optimizer& optimizer) {
  for (auto& [stepped, outcome] : steps_) {
    if (stepped == &optimizer) return outcome;
  }
  return steps_.emplace_back(&optimizer, StepOutcome()).second;
}

StepOutcome Accelerator::step_outcome() const {
  StepOutcome outcome(impl_->is_step_skipped_);
  for (const auto& step : impl_->steps_) outcome.add(step.second);
  return outcome;
}

StepOutcome Accelerator::take_step_outcome(const torch::optim::Optimizer& optimizer) {
  return std::exchange(impl_->outcome_of(optimizer), StepOutcome());
}

bool Accelerator::optimizer_step_was_skipped() {
  settle_optimizer_steps();
  return step_outcome().was_skipped();
}

void Accelerator::settle_optimizer_steps() {
  for (const torch::optim::Optimizer* optimizer : std::exchange(impl_->unsettled_, {})) {
    impl_->grad_scaler_->settle(*optimizer);
  }
}

void Accelerator::zero_grad(torch::optim::Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& parameter : group.params()) parameter.mutable_grad().reset();
  }
}

void Accelerator::drop_gradients(const std::vector<torch::optim::Optimizer*>& optimizers) {
  GradScaler* const scaler = grad_scaler();
  for (torch::optim::Optimizer* optimizer : optimizers) {
    const bool must_share =
        scaler != nullptr && scaler->has_unscaled(*optimizer) && !impl_->are_gradients_averaged();
    if (must_share) scaler->share_overflow(*optimizer, *impl_->mesh_->world());
    zero_grad(*optimizer);
  }
  if (scaler == nullptr) return;
  scaler->update();
  scaler->forget();
}

}  // namespace linkboy
