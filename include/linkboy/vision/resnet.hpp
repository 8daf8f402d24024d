#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

#include "linkboy/export.hpp"

namespace linkboy::vision {

/// Options of the ResNets.
struct ResNetOptions {
  /// Number of scores per image. Must be at least 1.
  int64_t num_classes = 1000;
  /// Number of channels of the images; 1 for grey images. Must be at least 1.
  int64_t in_channels = 3;
  /// If true, the network begins with a 3x3 convolution of stride 1 and does not use max pooling;
  /// this suits images of about 32 x 32 pixels.
  bool has_small_stem = false;
  /// If true, the last batch norm of each residual block has the initial weight 0, so that each
  /// block begins as the identity.
  bool zero_init_residual = false;
};

/// A ResNet with torchvision's parameter names, order and initialisation. It can load torchvision's
/// weights, and the same seed produces the same weights as in torchvision. Depths 18 and 34 have
/// basic blocks; depth 50 has bottlenecks with the stride in the 3x3 convolution ("v1.5"). Create
/// one with `resnet18`, `resnet34` or `resnet50`, or as `ResNet(depth, options)`.
class LINKBOY_API ResNetImpl : public torch::nn::Module {
 public:
  /// @param depth  18, 34 or 50.
  /// @throws OptionError if the depth has another value or an option is out of range.
  explicit ResNetImpl(int64_t depth, const ResNetOptions& options = {});

  /// Returns class scores, [N, num_classes].
  /// @param images  [N, in_channels, H, W], float. The last feature maps have 1/32 of the height
  ///        and width, or 1/8 with the small stem.
  at::Tensor forward(const at::Tensor& images);

 private:
  void initialise(bool zero_init_residual);

  bool has_small_stem_;
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Sequential layer1_, layer2_, layer3_, layer4_;
  torch::nn::Linear fc_;
};

/// Shared ownership of a ResNetImpl, as for LibTorch's modules.
TORCH_MODULE(ResNet);

/// Return torchvision's models of the same names, with random weights.
/// @throws OptionError if an option is out of range.
/// @{
LINKBOY_API ResNet resnet18(const ResNetOptions& options = {});
LINKBOY_API ResNet resnet34(const ResNetOptions& options = {});
LINKBOY_API ResNet resnet50(const ResNetOptions& options = {});
/// @}

}  // namespace linkboy::vision
