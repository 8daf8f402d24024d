#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include <linkboy/data/batch.hpp>

namespace byte_gpt {

/// `size` bytes of a text, starting at `begin`. The model predicts the byte after each of them.
struct Piece {
  int64_t begin;
  int64_t size;
};

/// The pieces of a text, with the interface of a LibTorch dataset. A sample has the tensors
/// "tokens" (int64 [size]), "targets" (int64 [size]) and "mask" (bool [size]).
struct Pieces {
  at::Tensor text;  // int64, one element per byte
  std::vector<Piece> pieces;

  std::optional<std::size_t> size() const { return pieces.size(); }
  std::vector<linkboy::Batch> get_batch(at::ArrayRef<std::size_t> indices) const;
};

/// Collates samples of different lengths into a batch. Each of its tensors has the shape
/// [N, longest], with zeros after the end of a row; "mask" is therefore false for the padding.
linkboy::Batch pad(const std::vector<linkboy::Batch>& samples);

struct Corpus {
  Pieces train;
  Pieces eval;
};

/// Splits a text into paragraphs at blank lines, and the paragraphs into pieces of at most `length`
/// bytes. Every tenth paragraph is held out for `eval`, where each byte is predicted once. The
/// pieces in `train` overlap, so that the same byte occurs at several positions.
///
/// @throws linkboy::Error if the file cannot be read or has fewer than ten paragraphs.
Corpus load_corpus(const std::filesystem::path& path, int64_t length);

}  // namespace byte_gpt
