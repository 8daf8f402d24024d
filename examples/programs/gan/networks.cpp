#include "networks.hpp"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

namespace gan {

torch::nn::Sequential make_mlp(int64_t num_inputs, int64_t num_outputs) {
  constexpr int64_t kWidth = 128;
  return torch::nn::Sequential(torch::nn::Linear(num_inputs, kWidth), torch::nn::ReLU(),
                               torch::nn::Linear(kWidth, kWidth), torch::nn::ReLU(),
                               torch::nn::Linear(kWidth, num_outputs));
}

}  // namespace gan
