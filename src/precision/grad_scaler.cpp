// Loss scaling for fp16. If the kernels support it, the device decides whether to skip an update,
// and the host does not wait.

#include "linkboy/precision/grad_scaler.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "linkboy/distributed/process_group.hpp"
#include "linkboy/error.hpp"
#include "precision/fused_step.hpp"

namespace linkboy {

using at::Tensor;

namespace {

void check(const GradScalerOptions& options) {
  LINKBOY_CHECK_OPTION(options.init_scale > 0.0 && std::isfinite(options.init_scale),
                       "the gradients' scale is ", options.init_scale,
                       "; it must be positive and finite.");
  LINKBOY_CHECK_OPTION(options.growth_factor > 1.0, "growth_factor is ", options.growth_factor,
                       "; it must be greater than 1.");
  LINKBOY_CHECK_OPTION(options.backoff_factor > 0.0 && options.backoff_factor < 1.0,
                       "backoff_factor is ", options.backoff_factor,
                       "; it must be between 0 and 1, exclusive.");
  LINKBOY_CHECK_OPTION(options.growth_interval >= 1, "growth_interval is ", options.growth_interval,
                       "; it must be at least 1 update.");
}

}  // namespace

StepOutcome::StepOutcome(const std::vector<Tensor>& found_inf) {
  for (const Tensor& found : found_inf) {
    if (found.is_cpu()) {
      was_skipped_ = was_skipped_ || found.item<double>() != 0.0;
    } else {
      pending_.emplace_back(found);
    }
  }
}

bool StepOutcome::was_skipped() const {
  return was_skipped_ || std::any_of(pending_.begin(), pending_.end(), [](const auto& found_inf) {
           return found_inf.value() != 0.0;
         });
}

void StepOutcome::add(const StepOutcome& other) {
  was_skipped_ = was_skipped_ || other.was_skipped_;
  pending_.insert(pending_.end(), other.pending_.begin(), other.pending_.end());
}

GradScaler::GradScaler(GradScalerOptions options) : options_(options) { check(options); }

Tensor GradScaler::scale(const Tensor& tensor) {
  if (!scale_.defined()) {
    const auto options = at::TensorOptions(tensor.device());
    scale_ = at::full({}, options_.init_scale, options.dtype(at::kFloat));
    growth_ = at::full({}, first_growth_, options.dtype(at::kInt));
  }
  return tensor * scale_.to(tensor.device(), /*non_blocking=*/true);
}

void GradScaler::check_scaled() const {
  LINKBOY_CHECK(scale_.defined(),
                "no loss has been scaled yet. Call scale(loss).backward() before step or unscale.");
}

bool GradScaler::has_unscaled(const torch::optim::Optimizer& optimizer) const {
  const auto found = optimizers_.find(&optimizer);
  return found != optimizers_.end() && found->second.is_unscaled;
}

void GradScaler::unscale(torch::optim::Optimizer& optimizer) {
  check_scaled();
  PerOptimizer& state = optimizers_[&optimizer];
  LINKBOY_CHECK(!state.is_stepped, "unscale was called after step; call it before, or not at all.");
  LINKBOY_CHECK(!state.is_unscaled,
                "unscale was called twice in one update: the gradients would be divided twice. "
                "Call it once, and call update after the step.");
  // Computed in double, as in Python, so that the inverse is the nearest float.
  multiply_gradients(optimizer, state, scale_.to(at::kDouble).reciprocal().to(at::kFloat));
  state.is_unscaled = true;
}

bool GradScaler::awaits_step() const {
  return std::any_of(optimizers_.begin(), optimizers_.end(), [](const auto& entry) {
    const PerOptimizer& state = entry.second;
    return state.is_unscaled && !state.is_stepped && state.gradient.defined() &&
           state.parameter.grad().is_same(state.gradient);
  });
}

void GradScaler::skip_steps() {
  for (auto& [optimizer, state] : optimizers_) state.gradient.reset();
}

void GradScaler::share_overflow(const torch::optim::Optimizer& optimizer,
                                const ProcessGroup& group) {
  PerOptimizer& state = optimizers_[&optimizer];
  LINKBOY_CHECK(state.is_unscaled, "share_overflow was called before unscale; call unscale first.");
  // Each rank contributes one flag, even if it does not have a gradient.
  Tensor flag = at::zeros_like(scale_);
  for (const Tensor& found : state.found_inf) {
    flag = at::maximum(flag, found.to(flag.device(), /*non_blocking=*/true));
  }
  group.all_reduce(flag, ReduceOp::max);
  state.found_inf = {flag};
}

/// Multiplies the gradients by `factor` and checks them for infinite values and NaN.
void GradScaler::multiply_gradients(torch::optim::Optimizer& optimizer, PerOptimizer& state,
                                    const Tensor& factor) {
  const at::NoGradGuard no_grad;
  // One kernel call handles all gradients of the same device and dtype.
  std::map<std::pair<c10::DeviceIndex, at::ScalarType>, std::vector<Tensor>> gradients;
  for (auto& group : optimizer.param_groups()) {
    for (const Tensor& parameter : group.params()) {
      const Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      LINKBOY_CHECK(gradient.scalar_type() != at::kHalf,
                    "a gradient is in half precision, but the scaler needs float parameters. Do "
                    "not convert the model to half; autocast computes in half precision.");
      if (gradient.is_sparse() && !gradient.is_coalesced()) {
        parameter.mutable_grad() = gradient.coalesce();
      }
      state.parameter = parameter;
      state.gradient = parameter.grad();
      const Tensor values = parameter.grad().is_sparse() ? parameter.grad()._values() : gradient;
      gradients[{values.device().index(), values.scalar_type()}].push_back(values);
    }
  }
  std::map<c10::DeviceIndex, Tensor> found_inf;
  for (auto& [key, list] : gradients) {
    const c10::Device device = list.front().device();
    Tensor& found = found_inf[key.first];
    if (!found.defined()) found = at::zeros({}, at::TensorOptions(device).dtype(at::kFloat));
    at::_amp_foreach_non_finite_check_and_unscale_(list, found,
                                                   factor.to(device, /*non_blocking=*/true));
  }
  state.found_inf.clear();
  for (auto& [index, found] : found_inf) state.found_inf.push_back(found);
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  const bool was_skipped = queue_step(optimizer).was_skipped();
  settle(optimizer);
  return !was_skipped;
}

StepOutcome GradScaler::queue_step(torch::optim::Optimizer& optimizer) {
  check_scaled();
  settle(optimizer);
  PerOptimizer& state = optimizers_[&optimizer];
  LINKBOY_CHECK(!state.is_stepped,
                "step was called twice in one update. Call update after every optimizer's step.");
  // As in Python, the kernels divide by the scale themselves if the gradients are not unscaled yet.
  const bool divides_in_kernel = !state.is_unscaled && supports_grad_scale(optimizer);
  if (divides_in_kernel) {
    multiply_gradients(optimizer, state, at::ones_like(scale_));
  } else if (!state.is_unscaled) {
    unscale(optimizer);
  }
  state.is_stepped = true;

  StepOutcome outcome(state.found_inf);
  GradientScaling scaling;
  if (divides_in_kernel && !state.found_inf.empty()) {
    scaling.grad_scale = scale_.to(state.found_inf.front().device(), /*non_blocking=*/true);
  }
  const bool is_queued = !state.found_inf.empty() && takes_found_inf(optimizer);
  if (is_queued) {
    scaling.found_inf = state.found_inf.front();
    fused_step(optimizer, scaling);
    queued_[&optimizer] = {outcome, counts_of_updates(optimizer)};
    if (outcome.is_known()) settle(optimizer);
    return outcome;
  }
  const bool was_skipped = outcome.was_skipped();
  if (!was_skipped && fused_step(optimizer, scaling) == FusedGradients::none) optimizer.step();
  return StepOutcome(was_skipped);
}

void GradScaler::settle(const torch::optim::Optimizer& optimizer) {
  const auto step = queued_.extract(&optimizer);
  if (step && step.mapped().outcome.was_skipped()) undo_step(optimizer, step.mapped().counts);
}

void GradScaler::collect(const PerOptimizer& state) {
  if (!collected_.defined()) collected_ = at::zeros_like(scale_);
  for (const Tensor& found : state.found_inf) {
    collected_ += found.to(scale_.device(), /*non_blocking=*/true);
  }
}

void GradScaler::collect_steps() {
  std::erase_if(optimizers_, [&](const auto& entry) {
    if (entry.second.is_stepped) collect(entry.second);
    return entry.second.is_stepped;
  });
}

void GradScaler::update() {
  if (optimizers_.empty() && !collected_.defined()) return;
  for (const auto& [optimizer, state] : optimizers_) collect(state);
  const Tensor found = std::exchange(collected_, Tensor());
  at::_amp_update_scale_(scale_, growth_, found, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  optimizers_.clear();
}

void GradScaler::forget() {
  optimizers_.clear();
  collected_.reset();
}

double GradScaler::get_scale() const {
  return scale_.defined() ? AsyncScalar(scale_).value() : options_.init_scale;
}

StateDict GradScaler::state_dict() const {
  StateDict state;
  state.set("scale", get_scale());
  state.set("growth_factor", options_.growth_factor);
  state.set("backoff_factor", options_.backoff_factor);
  state.set("growth_interval", options_.growth_interval);
  state.set("_growth_tracker",
            growth_.defined() ? static_cast<int64_t>(AsyncScalar(growth_).value()) : first_growth_);
  return state;
}

void GradScaler::load_state_dict(const StateDict& state) {
  const GradScalerOptions options = {state.get_double("scale"), state.get_double("growth_factor"),
                                     state.get_double("backoff_factor"),
                                     state.get_int("growth_interval")};
  check(options);
  const int64_t growth = state.get_int("_growth_tracker");
  LINKBOY_CHECK(growth >= 0, "_growth_tracker is ", growth, "; it must not be negative.");
  options_ = options;
  first_growth_ = growth;
  forget();
  if (!scale_.defined()) return;
  // Filled in place, because a recorded CUDA graph reads these tensors. Uses variable_data to hide
  // the change from autograd, because a loss that is already scaled may still need its backward
  // pass.
  scale_.variable_data().fill_(options.init_scale);
  growth_.variable_data().fill_(growth);
}

}  // namespace linkboy
