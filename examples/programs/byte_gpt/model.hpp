#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace byte_gpt {

inline constexpr int64_t kNumBytes = 256;

struct GptOptions {
  /// Length of the context in bytes.
  int64_t length = 64;
  int64_t layers = 3;
  /// Size of the embedding. Must be a multiple of `heads`.
  int64_t width = 128;
  int64_t heads = 4;
};

/// A transformer block: y = x + attention(norm(x)), and the output is y + mlp(norm(y)). Input and
/// output have the shape [N, T, width].
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor attend(const at::Tensor& x);

  int64_t num_heads_;
  torch::nn::LayerNorm attention_norm_;
  torch::nn::Linear query_key_value_;
  torch::nn::Linear projection_;
  torch::nn::LayerNorm mlp_norm_;
  torch::nn::Sequential mlp_;
};
TORCH_MODULE(Block);

/// Maps bytes (int64 [N, T]) to logits [N, T, 256] of the byte after each of them. T must be at
/// most `length`.
class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& tokens);

 private:
  torch::nn::Embedding bytes_;
  torch::nn::Embedding positions_;
  torch::nn::Sequential blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
};
TORCH_MODULE(Gpt);

}  // namespace byte_gpt
