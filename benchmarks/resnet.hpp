#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <iterator>
#include <string>

namespace linkboy::benchmarks {

inline torch::nn::Conv2d make_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

class ResidualBlock final : public torch::nn::Module {
 public:
  ResidualBlock(int64_t in, int64_t out, int64_t stride)
      : conv1_(make_conv(in, out, 3, stride)),
        bn1_(out),
        conv2_(make_conv(out, out, 3, 1)),
        bn2_(out) {
    register_module("conv1", conv1_);
    register_module("bn1", bn1_);
    register_module("conv2", conv2_);
    register_module("bn2", bn2_);
    if (stride == 1 && in == out) return;
    shortcut_->push_back(make_conv(in, out, 1, stride));
    shortcut_->push_back(torch::nn::BatchNorm2d(out));
    register_module("downsample", shortcut_);
  }

  at::Tensor forward(const at::Tensor& input) {
    at::Tensor output = bn1_(conv1_(input)).relu_();
    output = bn2_(conv2_(output));
    output += shortcut_->is_empty() ? input : shortcut_->forward(input);
    return output.relu_();
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d bn2_;
  torch::nn::Sequential shortcut_;
};

/// torchvision's ResNet-18, names and initial weights included, for 32 x 32 images: its first layer
/// is a 3x3 convolution of stride 1, and there is no max-pool after it.
class ResNet18 final : public torch::nn::Module {
 public:
  explicit ResNet18(int64_t num_classes)
      : conv1_(make_conv(3, 64, 3, 1)), bn1_(64), fc_(512, num_classes) {
    register_module("conv1", conv1_);
    register_module("bn1", bn1_);
    int64_t in = 64;
    for (std::size_t i = 0; i < std::size(layers_); ++i) {
      const int64_t out = int64_t{64} << i;
      layers_[i]->push_back(ResidualBlock(in, out, i == 0 ? 1 : 2));
      layers_[i]->push_back(ResidualBlock(out, out, 1));
      register_module("layer" + std::to_string(i + 1), layers_[i]);
      in = out;
    }
    register_module("fc", fc_);
    for (const auto& module : modules(/*include_self=*/false)) {
      if (const auto* conv = module->as<torch::nn::Conv2d>()) {
        torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
      }
    }
  }

  at::Tensor forward(const at::Tensor& images) {
    at::Tensor output = bn1_(conv1_(images)).relu_();
    for (auto& layer : layers_) output = layer->forward(output);
    return fc_(at::adaptive_avg_pool2d(output, {1, 1}).flatten(1));
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Sequential layers_[4];
  torch::nn::Linear fc_;
};

}  // namespace linkboy::benchmarks
