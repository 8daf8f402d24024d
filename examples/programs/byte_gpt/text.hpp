#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <linkboy/data/batch.hpp>
#include <optional>
#include <vector>

namespace byte_gpt {

/// `size` bytes of a text from `begin` on, each of which is to predict the one after it.
struct Piece {
  int64_t begin;
  int64_t size;
};

/// Pieces of a text, as a LibTorch dataset of single samples. Sample: "tokens" int64 [size],
/// "targets" int64 [size], "mask" bool [size].
struct Pieces {
  at::Tensor text;  // int64, a byte each
  std::vector<Piece> pieces;

  std::optional<std::size_t> size() const { return pieces.size(); }
  std::vector<linkboy::Batch> get_batch(at::ArrayRef<std::size_t> indices) const;
};

/// Makes a batch of samples of different lengths: each of its tensors [N, longest] has zeros where
/// a row has ended. In "mask" that says which bytes count.
linkboy::Batch pad(const std::vector<linkboy::Batch>& samples);

struct Corpus {
  Pieces train;
  Pieces eval;
};

/// Cuts a text into paragraphs, at blank lines, and those into pieces of at most `length` bytes.
/// Every tenth paragraph is held out for `eval`, where each byte is predicted once. In `train`
/// pieces overlap, so that a byte is met at many places.
///
/// @throws linkboy::Error if the file cannot be read or has fewer than ten paragraphs.
Corpus load_corpus(const std::filesystem::path& path, int64_t length);

}  // namespace byte_gpt
