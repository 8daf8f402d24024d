#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace gan {

inline constexpr int64_t kNoiseSize = 8;

torch::nn::Sequential make_mlp(int64_t num_inputs, int64_t num_outputs);

/// Both networks in one module, so that checkpoints hold both and both go to the device. As a model
/// it is what is wanted in the end: noise [N, kNoiseSize] becomes points [N, 2].
class GanImpl : public torch::nn::Module {
 public:
  GanImpl() {
    register_module("generator", generator);
    register_module("discriminator", discriminator);
  }
  at::Tensor forward(const at::Tensor& noise) { return generator->forward(noise); }

  torch::nn::Sequential generator = make_mlp(kNoiseSize, 2);
  /// Points [N, 2] become the logits [N, 1] of their being real.
  torch::nn::Sequential discriminator = make_mlp(2, 1);
};
TORCH_MODULE(Gan);

}  // namespace gan
