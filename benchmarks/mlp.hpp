#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

/// 784-128-64-10, the model of the comparisons of overhead.
class Mlp final : public torch::nn::Module {
 public:
  Mlp() {
    register_module("hidden1", hidden1_);
    register_module("hidden2", hidden2_);
    register_module("output", output_);
  }

  at::Tensor forward(const at::Tensor& input) {
    return output_(at::relu(hidden2_(at::relu(hidden1_(input)))));
  }

 private:
  torch::nn::Linear hidden1_{784, 128};
  torch::nn::Linear hidden2_{128, 64};
  torch::nn::Linear output_{64, 10};
};
