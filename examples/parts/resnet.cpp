#include "parts/resnet.hpp"

#include <torch/nn/functional/pooling.h>
#include <torch/nn/init.h>

#include <array>
#include <linkboy/error.hpp>

namespace resnet {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

/// Two 3x3 convolutions around which the input is added back.
class BasicBlockImpl : public nn::Module {
 public:
  BasicBlockImpl(int64_t in, int64_t out, int64_t stride)
      : downsample_(make_downsample(in, out, stride)),
        conv1_(conv(in, out, 3, stride)),
        bn1_(out),
        conv2_(conv(out, out, 3, 1)),
        bn2_(out) {
    register_module("conv1", conv1_);
    register_module("bn1", bn1_);
    register_module("conv2", conv2_);
    register_module("bn2", bn2_);
    if (downsample_) register_module("downsample", downsample_);
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = bn1_(conv1_(x)).relu_();
    y = bn2_(conv2_(y));
    y += downsample_ ? downsample_->forward(x) : x;
    return y.relu_();
  }

 private:
  /// Fits the input to the output's shape; null if it fits already.
  static nn::Sequential make_downsample(int64_t in, int64_t out, int64_t stride) {
    if (stride == 1 && in == out) return nullptr;
    return nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out));
  }

  // torchvision draws its weights first, though it is registered last.
  nn::Sequential downsample_;
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
};
TORCH_MODULE(BasicBlock);

/// Blocks in each of the four layers.
std::array<int, 4> layer_sizes(int64_t depth) {
  if (depth == 18) return {2, 2, 2, 2};
  if (depth == 34) return {3, 4, 6, 3};
  throw linkboy::Error(
      c10::str("a ResNet of depth ", depth, " is asked for; take a depth of 18 or 34."));
}

nn::Sequential make_layer(int64_t in, int64_t out, int64_t stride, int num_blocks) {
  nn::Sequential blocks;
  for (int i = 0; i < num_blocks; ++i) {
    blocks->push_back(i == 0 ? BasicBlock(in, out, stride) : BasicBlock(out, out, 1));
  }
  return blocks;
}

int64_t at_least_one(int64_t number, const char* of_what) {
  LINKBOY_CHECK(number >= 1, "a ResNet for ", number, " ", of_what,
                " is asked for; there must be at least 1.");
  return number;
}

nn::Conv2d make_stem(const ResNetOptions& options) {
  const int64_t channels = at_least_one(options.in_channels, "channels");
  return options.has_small_stem ? conv(channels, 64, 3, 1) : conv(channels, 64, 7, 2);
}

}  // namespace

// The members are made in their order, so that a seed gives the weights that it gives in Python.
ResNetImpl::ResNetImpl(const ResNetOptions& options)
    : has_small_stem_(options.has_small_stem),
      conv1_(make_stem(options)),
      bn1_(64),
      layer1_(make_layer(64, 64, 1, layer_sizes(options.depth)[0])),
      layer2_(make_layer(64, 128, 2, layer_sizes(options.depth)[1])),
      layer3_(make_layer(128, 256, 2, layer_sizes(options.depth)[2])),
      layer4_(make_layer(256, 512, 2, layer_sizes(options.depth)[3])),
      fc_(512, at_least_one(options.num_classes, "classes")) {
  register_module("conv1", conv1_);
  register_module("bn1", bn1_);
  register_module("layer1", layer1_);
  register_module("layer2", layer2_);
  register_module("layer3", layer3_);
  register_module("layer4", layer4_);
  register_module("fc", fc_);
  // BatchNorm starts with weight 1 and bias 0 by itself.
  for (const auto& module : modules(/*include_self=*/false)) {
    if (const auto* layer = module->as<nn::Conv2d>()) {
      nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
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

}  // namespace resnet
