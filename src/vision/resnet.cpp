// Builds ResNets in torchvision's order of modules, so that a seed gives the same weights.

#include "linkboy/vision/resnet.hpp"

#include <torch/nn/functional/pooling.h>
#include <torch/nn/init.h>

#include <array>
#include <string>
#include <vector>

#include "linkboy/error.hpp"

namespace linkboy::vision {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

/// The structure of the networks of one depth.
struct Architecture {
  std::array<int, 4> num_blocks;
  /// Output channels of a block per channel inside it.
  int64_t expansion;
};

Architecture architecture_of(int64_t depth) {
  if (depth == 18) return {{2, 2, 2, 2}, 1};
  if (depth == 34) return {{3, 4, 6, 3}, 1};
  if (depth == 50) return {{3, 4, 6, 3}, 4};
  throw OptionError(c10::str("the depth of a ResNet is ", depth, "; it must be 18, 34 or 50."));
}

/// Convolutions whose input is added to their output: two of 3x3 in a basic block; 1x1, 3x3 and 1x1
/// in a bottleneck (an expansion above 1).
class ResidualBlockImpl : public nn::Module {
 public:
  ResidualBlockImpl(int64_t in, int64_t width, int64_t stride, int64_t expansion) {
    const int64_t out = width * expansion;
    // torchvision initialises its weights first, although it registers it last.
    if (stride != 1 || in != out) {
      downsample_ = nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out));
    }
    if (expansion == 1) {
      add(conv(in, out, 3, stride), out);
      add(conv(out, out, 3, 1), out);
    } else {
      add(conv(in, width, 1, 1), width);
      add(conv(width, width, 3, stride), width);
      add(conv(width, out, 1, 1), out);
    }
    if (downsample_) register_module("downsample", downsample_);
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (std::size_t i = 0; i < convs_.size(); ++i) {
      y = norms_[i](convs_[i](y));
      if (i + 1 < convs_.size()) y.relu_();
    }
    y += downsample_ ? downsample_->forward(x) : x;
    return y.relu_();
  }

  nn::BatchNorm2d& last_norm() { return norms_.back(); }

 private:
  void add(nn::Conv2d layer, int64_t channels) {
    const std::string number = std::to_string(convs_.size() + 1);
    convs_.push_back(register_module("conv" + number, std::move(layer)));
    norms_.push_back(register_module("bn" + number, nn::BatchNorm2d(channels)));
  }

  std::vector<nn::Conv2d> convs_;
  std::vector<nn::BatchNorm2d> norms_;
  nn::Sequential downsample_{nullptr};  // null if the input already has the output's shape
};
TORCH_MODULE(ResidualBlock);

/// Returns one of the four layers, numbered from 0.
nn::Sequential make_layer(int layer, int64_t depth) {
  const auto [num_blocks, expansion] = architecture_of(depth);
  const int64_t width = int64_t{64} << layer;
  nn::Sequential blocks;
  for (int i = 0; i < num_blocks[layer]; ++i) {
    const int64_t in = i > 0 ? width * expansion : layer > 0 ? width / 2 * expansion : 64;
    blocks->push_back(ResidualBlock(in, width, i == 0 && layer > 0 ? 2 : 1, expansion));
  }
  return blocks;
}

int64_t at_least_one(const char* name, int64_t number) {
  LINKBOY_CHECK_OPTION(number >= 1, "a ResNet's ", name, " is ", number,
                       "; it must be at least 1.");
  return number;
}

nn::Conv2d make_stem(const ResNetOptions& options) {
  const int64_t channels = at_least_one("in_channels", options.in_channels);
  return options.has_small_stem ? conv(channels, 64, 3, 1) : conv(channels, 64, 7, 2);
}

}  // namespace

// Creates the members in torchvision's order, so that a seed produces the same weights as in
// Python.
ResNetImpl::ResNetImpl(int64_t depth, const ResNetOptions& options)
    : has_small_stem_(options.has_small_stem),
      conv1_(register_module("conv1", make_stem(options))),
      bn1_(register_module("bn1", nn::BatchNorm2d(64))),
      layer1_(register_module("layer1", make_layer(0, depth))),
      layer2_(register_module("layer2", make_layer(1, depth))),
      layer3_(register_module("layer3", make_layer(2, depth))),
      layer4_(register_module("layer4", make_layer(3, depth))),
      fc_(register_module("fc", nn::Linear(512 * architecture_of(depth).expansion,
                                           at_least_one("num_classes", options.num_classes)))) {
  initialise(options.zero_init_residual);
}

/// Batch norms have the initial weight 1 and bias 0 by default.
void ResNetImpl::initialise(bool zero_init_residual) {
  for (const auto& module : modules(/*include_self=*/false)) {
    if (const auto* layer = module->as<nn::Conv2d>()) {
      nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
    } else if (auto* block = module->as<ResidualBlock>(); block && zero_init_residual) {
      nn::init::zeros_(block->last_norm()->weight);
    }
  }
}

at::Tensor ResNetImpl::forward(const at::Tensor& images) {
  at::Tensor x = bn1_(conv1_(images)).relu_();
  if (!has_small_stem_) x = F::max_pool2d(x, F::MaxPool2dFuncOptions(3).stride(2).padding(1));
  x = layer1_->forward(x);
  x = layer2_->forward(x);
  x = layer3_->forward(x);
  x = layer4_->forward(x);
  return fc_(F::adaptive_avg_pool2d(x, F::AdaptiveAvgPool2dFuncOptions(1)).flatten(1));
}

ResNet resnet18(const ResNetOptions& options) { return ResNet(18, options); }
ResNet resnet34(const ResNetOptions& options) { return ResNet(34, options); }
ResNet resnet50(const ResNetOptions& options) { return ResNet(50, options); }

}  // namespace linkboy::vision
