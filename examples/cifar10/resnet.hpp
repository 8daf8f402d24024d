#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace resnet {

struct ResNetOptions {
  int64_t depth = 34;  // 18 or 34
  int64_t num_classes = 1000;
};

/// ResNet-18 or ResNet-34 as torchvision builds them, with its parameter names and initialisation:
/// a state dict of torchvision's model loads, and the same seed gives the same weights.
class ResNetImpl : public torch::nn::Module {
 public:
  /// @throws linkboy::Error if the depth is neither 18 nor 34, or there is no class.
  explicit ResNetImpl(const ResNetOptions& options = {});

  /// @param images  [N, 3, H, W], float. Each layer group halves the size; 32 x 32 ends as 1 x 1.
  /// @return Class scores, [N, num_classes].
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Sequential layer1_, layer2_, layer3_, layer4_;
  torch::nn::Linear fc_;
};
TORCH_MODULE(ResNet);

}  // namespace resnet
