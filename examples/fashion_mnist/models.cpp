#include "models.hpp"

#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <linkboy/checkpoint.hpp>
#include <linkboy/error.hpp>

#include "idx.hpp"

namespace fashion_mnist {
namespace {

namespace nn = torch::nn;

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

/// Two 3x3 convolutions around which the input is added back.
class BasicBlockImpl : public nn::Module {
 public:
  BasicBlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1_(conv(in, out, 3, stride)), bn1_(out), conv2_(conv(out, out, 3, 1)), bn2_(out) {
    register_module("conv1", conv1_);
    register_module("bn1", bn1_);
    register_module("conv2", conv2_);
    register_module("bn2", bn2_);
    if (stride != 1 || in != out) {
      downsample_ = nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out));
      register_module("downsample", downsample_);
    }
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = bn1_(conv1_(x)).relu_();
    y = bn2_(conv2_(y));
    y += downsample_.is_empty() ? x : downsample_->forward(x);
    return y.relu_();
  }

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
  nn::Sequential downsample_{nullptr};
};
TORCH_MODULE(BasicBlock);

nn::Sequential make_layer(int64_t in, int64_t out, int64_t stride) {
  return nn::Sequential(BasicBlock(in, out, stride), BasicBlock(out, out, 1));
}

}  // namespace

// Layers are added one by one: the arguments of one call would be made in any order, and a seed
// would not give the weights that it gives in Python.

MlpImpl::MlpImpl() {
  push_back(nn::Linear(kImageSize * kImageSize, 128));
  push_back(nn::ReLU());
  push_back(nn::Linear(128, 64));
  push_back(nn::ReLU());
  push_back(nn::Linear(64, kNumClasses));
}

at::Tensor MlpImpl::forward(const at::Tensor& images) {
  return SequentialImpl::forward(images.flatten(1));
}

torch::nn::Sequential make_cnn() {
  nn::Sequential layers;
  int64_t in = 1;
  for (int64_t out : {16, 32}) {
    layers->push_back(nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)));
    layers->push_back(nn::BatchNorm2d(out));
    layers->push_back(nn::ReLU());
    layers->push_back(nn::MaxPool2d(2));
    in = out;
  }
  layers->push_back(nn::Flatten());
  layers->push_back(nn::Linear(32 * 7 * 7, 128));
  layers->push_back(nn::ReLU());
  layers->push_back(nn::Linear(128, kNumClasses));
  return layers;
}

ResNet18Impl::ResNet18Impl()
    : conv1_(conv(1, 64, 3, 1)),
      bn1_(64),
      layer1_(make_layer(64, 64, 1)),
      layer2_(make_layer(64, 128, 2)),
      layer3_(make_layer(128, 256, 2)),
      layer4_(make_layer(256, 512, 2)),
      fc_(512, kNumClasses) {
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

at::Tensor ResNet18Impl::forward(const at::Tensor& images) {
  at::Tensor x = bn1_(conv1_(images)).relu_();
  x = layer1_->forward(x);
  x = layer2_->forward(x);
  x = layer3_->forward(x);
  x = layer4_->forward(x);
  return fc_(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

linkboy::Model make_model(const std::string& name) {
  if (name == "mlp") return Mlp();
  if (name == "cnn") return make_cnn();
  if (name == "resnet18") return ResNet18();
  throw linkboy::Error("there is no model '" + name + "'. Take mlp, cnn or resnet18.");
}

void load_weights(linkboy::Model& model, const std::filesystem::path& path,
                  const std::string& key) {
  linkboy::StateDict state = linkboy::select_part(linkboy::read_checkpoint(path), key);
  for (const char* usual : {"model_state_dict", "state_dict", "model"}) {
    if (key.empty() && state.contains(usual) && state.at(usual).isGenericDict()) {
      state = state.get_dict(usual);
    }
  }
  try {
    model.load_state_dict(state);
  } catch (const linkboy::Error& error) {
    throw linkboy::Error(c10::str("the weights in ", path, " do not fit: ", error.what()));
  }
}

}  // namespace fashion_mnist
