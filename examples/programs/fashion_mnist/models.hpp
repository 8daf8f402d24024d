#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <linkboy/model.hpp>
#include <string>

namespace fashion_mnist {

/// All of these: images [N, 1, 28, 28] -> class scores [N, 10].

/// Linear 784-128, ReLU, Linear 128-64, ReLU, Linear 64-10. Flattens the images before its first
/// layer, so that the layers count from 0.
class MlpImpl : public torch::nn::SequentialImpl {
 public:
  MlpImpl();
  at::Tensor forward(const at::Tensor& images);
};
TORCH_MODULE(Mlp);

/// Twice (Conv 3x3, BatchNorm, ReLU, MaxPool 2), 16 and 32 channels; Linear 1568-128, ReLU,
/// Linear 128-10.
torch::nn::Sequential make_cnn();

/// @param name  "mlp", "cnn" or "resnet18", which is ResNet-18 for small grey images: a 3x3 stem of
///              stride 1 on one channel and no first max-pool.
/// @throws linkboy::OptionError if it is anything else.
linkboy::Model make_model(const std::string& name);

}  // namespace fashion_mnist
