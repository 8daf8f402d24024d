// Training steps with and without activation checkpoints.

#pragma once

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

namespace linkboy::testing {

/// Makes one training step. Returns the loss, all gradients, and the random numbers drawn after the
/// step.
inline std::vector<torch::Tensor> step(const std::function<torch::Tensor(torch::Tensor)>& network,
                                       const std::vector<torch::Tensor>& parameters,
                                       torch::Tensor input) {
  torch::manual_seed(7);
  for (auto parameter : parameters) parameter.mutable_grad() = torch::Tensor();
  const bool input_grad = input.requires_grad();
  input = input.detach().clone().requires_grad_(input_grad);
  const auto loss = network(input).to(torch::kFloat).pow(2).sum();
  loss.backward();
  std::vector<torch::Tensor> results{loss.detach()};
  for (const auto& parameter : parameters) {
    EXPECT_TRUE(parameter.grad().defined());
    results.push_back(parameter.grad());
  }
  if (input_grad) results.push_back(input.grad());
  results.push_back(torch::rand({4}));
  if (input.is_cuda()) results.push_back(torch::rand({4}, input.device()));
  return results;
}

inline torch::nn::Sequential dropout_mlp(int64_t width = 8) {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(width, width), torch::nn::GELU(),
                               torch::nn::Dropout(0.5), torch::nn::Linear(width, width),
                               torch::nn::Tanh(), torch::nn::Dropout(0.2));
}

inline torch::Tensor rows(int64_t num_rows = 5, int64_t width = 8) {
  return torch::sin(torch::arange(num_rows * width, torch::kFloat)).reshape({num_rows, width});
}

/// Enables bfloat16 autocast within its scope.
class Autocast {
 public:
  explicit Autocast(torch::DeviceType device = torch::kCPU) : device_(device) {
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, torch::kBFloat16);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(device_, false);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  }

 private:
  torch::DeviceType device_;
};

}  // namespace linkboy::testing
