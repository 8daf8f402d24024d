#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace gan {

inline constexpr int64_t kNoiseSize = 8;

torch::nn::Sequential make_mlp(int64_t num_inputs, int64_t num_outputs);

/// Combines both networks in one module, so that checkpoints contain both and both move to the
/// device. `forward` runs the generator only: it maps noise [N, kNoiseSize] to points [N, 2].
class GanImpl : public torch::nn::Module {
 public:
  GanImpl() {
    register_module("generator", generator);
    register_module("discriminator", discriminator);
  }
  at::Tensor forward(const at::Tensor& noise) { return generator->forward(noise); }

  torch::nn::Sequential generator = make_mlp(kNoiseSize, 2);
  /// Maps points [N, 2] to logits [N, 1]; a high logit means that the point is probably real.
  torch::nn::Sequential discriminator = make_mlp(2, 1);
};
TORCH_MODULE(Gan);

}  // namespace gan
