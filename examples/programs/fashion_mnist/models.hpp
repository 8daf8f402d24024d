#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <string>

#include <linkboy/model.hpp>

namespace fashion_mnist {

// All models map images [N, 1, 28, 28] to class scores [N, 10].

/// Linear 784-128, ReLU, Linear 128-64, ReLU, Linear 64-10. `forward` flattens the images, so that
/// layer 0 is the first Linear.
class MlpImpl : public torch::nn::SequentialImpl {
 public:
  MlpImpl();
  at::Tensor forward(const at::Tensor& images);
};
TORCH_MODULE(Mlp);

/// Twice (Conv 3x3, BatchNorm, ReLU, MaxPool 2), 16 and 32 channels; Linear 1568-128, ReLU,
/// Linear 128-10.
torch::nn::Sequential make_cnn();

/// Creates the model `name`: "mlp", "cnn" or "resnet18". The last is a ResNet-18 for small grey
/// images, with one input channel, a 3x3 stem of stride 1 and no first max-pool.
/// @throws linkboy::OptionError if there is no such model.
linkboy::Model make_model(const std::string& name);

}  // namespace fashion_mnist
