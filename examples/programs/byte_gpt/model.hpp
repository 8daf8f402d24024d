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
  /// Bytes that it looks back at.
  int64_t length = 64;
  int64_t layers = 3;
  /// Numbers per byte; a multiple of `heads`.
  int64_t width = 128;
  int64_t heads = 4;
};

/// x + attention(norm(x)), and to that mlp(norm(...)). [N, T, width] stays [N, T, width].
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

/// Bytes, int64 [N, T], become logits [N, T, 256] of the byte after each; T is at most `length`.
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
