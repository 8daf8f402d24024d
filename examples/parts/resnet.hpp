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
  int64_t in_channels = 3;
  /// Starts with a 3x3 convolution of stride 1 and no max-pool, for images of about 32 x 32.
  bool has_small_stem = false;
};

/// ResNet-18 or ResNet-34 as torchvision builds them, with its parameter names and initialisation:
/// a state dict of torchvision's model loads, and the same seed gives the same weights. The small
/// stem and other channels change what torchvision's users change by hand, `conv1` and `maxpool`.
class ResNetImpl : public torch::nn::Module {
 public:
  /// @throws linkboy::Error if the depth is neither 18 nor 34, or there is no class or channel.
  explicit ResNetImpl(const ResNetOptions& options = {});

  /// @param images  [N, in_channels, H, W], float. The last features have a 32nd of the height and
  ///                width; with the small stem an 8th.
  /// @return Class scores, [N, num_classes].
  at::Tensor forward(const at::Tensor& images);

 private:
  bool has_small_stem_;
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Sequential layer1_, layer2_, layer3_, layer4_;
  torch::nn::Linear fc_;
};
TORCH_MODULE(ResNet);

}  // namespace resnet
