#include "models.hpp"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <linkboy/error.hpp>
#include <linkboy/vision/resnet.hpp>

#include "idx.hpp"

namespace fashion_mnist {

namespace nn = torch::nn;

// Adds the layers one by one. The arguments of a single call would be constructed in unspecified
// order, and a seed would not produce the same weights as in Python.

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

linkboy::Model make_model(const std::string& name) {
  if (name == "mlp") return Mlp();
  if (name == "cnn") return make_cnn();
  if (name == "resnet18") {
    return linkboy::vision::resnet18(
        {.num_classes = kNumClasses, .in_channels = 1, .has_small_stem = true});
  }
  throw linkboy::OptionError("there is no model '" + name + "'. Choose mlp, cnn or resnet18.");
}

}  // namespace fashion_mnist
