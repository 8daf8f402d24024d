#pragma once

#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

/// The convolutional network of compare_peers.py: images of 1 x 28 x 28, ten classes.
class Cnn final : public torch::nn::Module {
 public:
  Cnn() {
    register_module("conv1", conv1_);
    register_module("conv2", conv2_);
    register_module("hidden", hidden_);
    register_module("output", output_);
  }

  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = at::max_pool2d(at::relu(conv1_(images)), 2);
    x = at::max_pool2d(at::relu(conv2_(x)), 2);
    return output_(at::relu(hidden_(x.flatten(1))));
  }

 private:
  torch::nn::Conv2d conv1_{torch::nn::Conv2dOptions(1, 32, 5)};
  torch::nn::Conv2d conv2_{torch::nn::Conv2dOptions(32, 64, 5)};
  torch::nn::Linear hidden_{64 * 4 * 4, 128};
  torch::nn::Linear output_{128, 10};
};
