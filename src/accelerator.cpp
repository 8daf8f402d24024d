#include "linkboy/accelerator.hpp"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/cuda.h>
#include <torch/optim/optimizer.h>
#include <torch/utils.h>

#include <cmath>
#include <cstdlib>
#include <iostream>

#include "data/device_loader.hpp"
#include "linkboy/error.hpp"
#include "precision/fused_step.hpp"

namespace linkboy {
namespace {

c10::Device parse_device(const std::string& name) {
  const auto num_cuda = int{torch::cuda::device_count()};
  if (name == "auto") return num_cuda > 0 ? c10::Device("cuda:0") : c10::Device("cpu");
  if (name == "cpu") return c10::Device("cpu");
  const bool is_cuda = name == "cuda" || name.starts_with("cuda:");
  int index = 0;
  if (is_cuda && name != "cuda") {
    const std::string digits = name.substr(5);
    const bool is_number = !digits.empty() && digits.size() < 4 &&
                           digits.find_first_not_of("0123456789") == std::string::npos;
    LINKBOY_CHECK(is_number, "the device is \"", name,
                  "\"; it must be auto, cpu, cuda or cuda:INDEX.");
    index = std::stoi(digits);
  }
  LINKBOY_CHECK(is_cuda, "the device is \"", name, "\"; it must be auto, cpu, cuda or cuda:INDEX.");
  LINKBOY_CHECK(index < num_cuda, "the device is \"", name, "\", but there are ", num_cuda,
                " CUDA devices here. Use cpu, auto or a smaller index.");
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

std::optional<at::ScalarType> parse_precision(const std::string& name) {
  if (name == "no") return std::nullopt;
  if (name == "bf16") return at::kBFloat16;
  LINKBOY_CHECK(name == "fp16", "mixed_precision is \"", name, "\"; it must be no, bf16 or fp16.");
  return at::kHalf;
}

void use_deterministic_algorithms() {
  // cuBLAS reads it when it is first used, and LibTorch refuses to call it without.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
}

}  // namespace

AutocastScope::AutocastScope(c10::DeviceType device, std::optional<c10::ScalarType> dtype)
    : device_(device), is_active_(dtype.has_value()) {
  if (!is_active_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(device_);
  old_dtype_ = at::autocast::get_autocast_dtype(device_);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, *dtype);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!is_active_) return;
  // Once a step: the casts would be of parameters before their update.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, old_dtype_);
}

Accelerator::Accelerator(AcceleratorOptions options)
    : device_(parse_device(options.device)),
      mixed_precision_(options.mixed_precision),
      autocast_dtype_(parse_precision(options.mixed_precision)),
      channels_last_(options.channels_last) {
  if (autocast_dtype_ == at::kHalf)
    grad_scaler_ = std::make_unique<GradScaler>(options.grad_scaler);
  if (options.deterministic) use_deterministic_algorithms();
  set_gradient_accumulation_steps(options.gradient_accumulation_steps);
}

void Accelerator::set_gradient_accumulation_steps(int64_t steps) {
  LINKBOY_CHECK(steps >= 1, "gradient_accumulation_steps is ", steps,
                "; it must be at least 1. Use 1 to update after every batch.");
  gradient_accumulation_steps_ = steps;
}

void Accelerator::prepare(Model& model) const {
  model.to(device_);
  if (channels_last_) model.to(at::MemoryFormat::ChannelsLast);
}

std::shared_ptr<DataLoader> Accelerator::prepare(std::shared_ptr<DataLoader> loader) const {
  if (device_.is_cpu() && !channels_last_) return loader;
  return std::make_shared<DeviceLoader>(std::move(loader), device_, channels_last_);
}

bool Accelerator::accumulate(int64_t index, int64_t num_micro_steps) {
  optimizer_step_was_skipped_ = false;
  window_index_ = index % gradient_accumulation_steps_;
  window_length_ =
      std::min(gradient_accumulation_steps_, num_micro_steps - (index - window_index_));
  return window_index_ + 1 == window_length_;
}

void Accelerator::backward(const at::Tensor& loss) {
  optimizer_step_was_skipped_ = false;
  // The division is left out where it changes nothing, to save a node of the graph.
  const at::Tensor share = window_length_ == 1 ? loss : loss / window_length_;
  if (!grad_scaler_) {
    share.backward();
    return;
  }
  update_scale();
  grad_scaler_->scale(share).backward();
}

void Accelerator::update_scale() {
  if (grad_scaler_) grad_scaler_->update();
}

void Accelerator::unscale_gradients(torch::optim::Optimizer& optimizer) {
  if (grad_scaler_ && !grad_scaler_->has_unscaled(optimizer)) grad_scaler_->unscale(optimizer);
}

at::Tensor Accelerator::clip_grad_norm(const std::vector<at::Tensor>& parameters,
                                       double max_norm) const {
  LINKBOY_CHECK(max_norm > 0.0, "the norm to clip at is ", max_norm, "; it must be positive.");
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  if (gradients.empty()) return at::zeros({}, at::TensorOptions().device(device_));
  auto norms = at::_foreach_norm(gradients, 2);
  // Parameters may live on several devices; their norms meet on the first.
  for (auto& norm : norms) norm = norm.to(norms.front().device());
  at::Tensor total = at::linalg_vector_norm(at::stack(norms), 2);
  if (std::isinf(max_norm)) return total;
  // Python divides a number by a tensor as the number times the reciprocal; C++'s operator differs
  // from that in the last bit.
  const at::Tensor coefficient = ((total + 1e-6).reciprocal() * max_norm).clamp_max(1.0);
  at::_foreach_mul_(gradients, coefficient);
  return total;
}

void Accelerator::clip_grad_value(const std::vector<at::Tensor>& parameters,
                                  double clip_value) const {
  LINKBOY_CHECK(clip_value > 0.0, "the value to clip at is ", clip_value, "; it must be positive.");
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(parameters);
  if (gradients.empty()) return;
  at::_foreach_clamp_min_(gradients, -clip_value);
  at::_foreach_clamp_max_(gradients, clip_value);
}

void Accelerator::optimizer_step(torch::optim::Optimizer& optimizer) {
  if (grad_scaler_) {
    if (!grad_scaler_->step(optimizer)) optimizer_step_was_skipped_ = true;
  } else if (!fused_step(optimizer)) {
    optimizer.step();
  }
}

void Accelerator::print(std::string_view line) const {
  if (is_local_main_process()) std::cout << line << std::endl;
}

void Accelerator::set_seed(uint64_t seed) { torch::manual_seed(seed); }

}  // namespace linkboy
