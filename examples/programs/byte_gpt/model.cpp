#include "model.hpp"

#include <ATen/ATen.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>

namespace byte_gpt {
namespace {

namespace nn = torch::nn;

nn::LayerNorm make_norm(int64_t width) { return nn::LayerNorm(nn::LayerNormOptions({width})); }

nn::Sequential make_mlp(int64_t width) {
  return nn::Sequential(nn::Linear(width, 4 * width), nn::GELU(), nn::Linear(4 * width, width));
}

}  // namespace

BlockImpl::BlockImpl(const GptOptions& options)
    : num_heads_(options.heads),
      attention_norm_(make_norm(options.width)),
      query_key_value_(options.width, 3 * options.width),
      projection_(options.width, options.width),
      mlp_norm_(make_norm(options.width)),
      mlp_(make_mlp(options.width)) {
  register_module("attention_norm", attention_norm_);
  register_module("query_key_value", query_key_value_);
  register_module("projection", projection_);
  register_module("mlp_norm", mlp_norm_);
  register_module("mlp", mlp_);
}

at::Tensor BlockImpl::forward(const at::Tensor& x) {
  const at::Tensor y = x + projection_(attend(attention_norm_(x)));
  return y + mlp_->forward(mlp_norm_(y));
}

at::Tensor BlockImpl::attend(const at::Tensor& x) {
  // Splits [N, T, 3 * width] into three tensors of shape [N, heads, T, width / heads].
  const auto parts = query_key_value_(x)
                         .unflatten(-1, {3, num_heads_, x.size(2) / num_heads_})
                         .permute({2, 0, 3, 1, 4})
                         .unbind(0);
  // Rows are padded at the end and the attention is causal, so unmasked bytes never see padding.
  return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], /*attn_mask=*/{},
                                          /*dropout_p=*/0.0, /*is_causal=*/true)
      .transpose(1, 2)
      .flatten(2);
}

GptImpl::GptImpl(const GptOptions& options)
    : bytes_(kNumBytes, options.width),
      positions_(options.length, options.width),
      norm_(make_norm(options.width)),
      head_(options.width, kNumBytes) {
  register_module("bytes", bytes_);
  register_module("positions", positions_);
  for (int64_t i = 0; i < options.layers; ++i) blocks_->push_back(Block(options));
  register_module("blocks", blocks_);
  register_module("norm", norm_);
  register_module("head", head_);

  // LibTorch initialises embeddings with a standard deviation of 1, which slows the first updates.
  for (const nn::Embedding& embedding : {bytes_, positions_}) {
    nn::init::normal_(embedding->weight, 0.0, 0.1);
  }
}

at::Tensor GptImpl::forward(const at::Tensor& tokens) {
  const at::Tensor positions = at::arange(tokens.size(1), tokens.options());
  return head_(norm_(blocks_->forward(bytes_(tokens) + positions_(positions))));
}

}  // namespace byte_gpt
