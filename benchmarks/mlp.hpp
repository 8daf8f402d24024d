#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

/// The model of the overhead comparisons: 784-128-64-10, or with wider hidden layers.
class Mlp final : public torch::nn::Module {
 public:
  explicit Mlp(int64_t width1 = 128, int64_t width2 = 64)
      : hidden1_(784, width1), hidden2_(width1, width2), output_(width2, 10) {
    register_module("hidden1", hidden1_);
    register_module("hidden2", hidden2_);
    register_module("output", output_);
  }

  at::Tensor forward(const at::Tensor& input) {
    return output_(at::relu(hidden2_(at::relu(hidden1_(input)))));
  }

 private:
  torch::nn::Linear hidden1_;
  torch::nn::Linear hidden2_;
  torch::nn::Linear output_;
};
