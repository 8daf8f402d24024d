#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

#include "linkboy/export.hpp"

namespace linkboy::vision {

/// What users of torchvision's ResNets choose, or change by hand afterwards.
struct ResNetOptions {
  /// Scores per image. At least 1.
  int64_t num_classes = 1000;
  /// Channels of the images: 1 for grey ones. At least 1.
  int64_t in_channels = 3;
  /// Begins with a 3x3 convolution of stride 1 and without max-pooling, for images of about 32
  /// x 32.
  bool has_small_stem = false;
  /// Starts the last batch norm of each residual block with weight 0: each block is the identity.
  bool zero_init_residual = false;
};

/// A ResNet with torchvision's parameter names, order and initialisation: torchvision's weights
/// load, and the same seed gives the same weights. Depths 18 and 34 have basic blocks; depth 50 has
/// bottlenecks with the stride in the 3x3 convolution ("v1.5"). Made by `resnet18` and the others,
/// or as `ResNet(depth, options)`.
class LINKBOY_API ResNetImpl : public torch::nn::Module {
 public:
  /// @param depth  18, 34 or 50.
  /// @throws OptionError if the depth is none of these, or an option is out of its range.
  explicit ResNetImpl(int64_t depth, const ResNetOptions& options = {});

  /// Returns class scores, [N, num_classes].
  /// @param images  [N, in_channels, H, W], float. The last feature maps have 1/32 of the height
  ///                and width; with the small stem, 1/8.
  at::Tensor forward(const at::Tensor& images);

 private:
  void initialise(bool zero_init_residual);

  bool has_small_stem_;
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Sequential layer1_, layer2_, layer3_, layer4_;
  torch::nn::Linear fc_;
};

/// Shared ownership of a ResNetImpl, as LibTorch's modules have it.
TORCH_MODULE(ResNet);

/// torchvision's models of these names.
/// @throws OptionError if an option is out of its range.
/// @{
LINKBOY_API ResNet resnet18(const ResNetOptions& options = {});
LINKBOY_API ResNet resnet34(const ResNetOptions& options = {});
LINKBOY_API ResNet resnet50(const ResNetOptions& options = {});
/// @}

}  // namespace linkboy::vision
