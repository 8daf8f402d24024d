#include "linkboy/accelerator.hpp"

#include <ATen/ATen.h>
#include <torch/cuda.h>
#include <torch/optim/optimizer.h>
#include <torch/utils.h>

#include <cmath>
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

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options) : device_(parse_device(options.device)) {
  set_gradient_accumulation_steps(options.gradient_accumulation_steps);
}

void Accelerator::set_gradient_accumulation_steps(int64_t steps) {
  LINKBOY_CHECK(steps >= 1, "gradient_accumulation_steps is ", steps,
                "; it must be at least 1. Use 1 to update after every batch.");
  gradient_accumulation_steps_ = steps;
}

void Accelerator::prepare(Model& model) const { model.to(device_); }

std::shared_ptr<DataLoader> Accelerator::prepare(std::shared_ptr<DataLoader> loader) const {
  if (device_.is_cpu()) return loader;
  return std::make_shared<DeviceLoader>(std::move(loader), device_);
}

bool Accelerator::accumulate(int64_t index, int64_t num_micro_steps) {
  const int64_t place = index % gradient_accumulation_steps_;
  window_length_ = std::min(gradient_accumulation_steps_, num_micro_steps - (index - place));
  return place + 1 == window_length_;
}

void Accelerator::backward(const at::Tensor& loss) const {
  // The division is left out where it changes nothing, to save a node of the graph.
  (window_length_ == 1 ? loss : loss / window_length_).backward();
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
  optimizer_step_was_skipped_ = false;
  if (!fused_step(optimizer)) optimizer.step();
}

void Accelerator::print(std::string_view line) const {
  if (is_local_main_process()) std::cout << line << std::endl;
}

void Accelerator::set_seed(uint64_t seed) { torch::manual_seed(seed); }

}  // namespace linkboy
