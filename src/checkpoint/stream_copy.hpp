#pragma once

#include <cstddef>
#include <vector>

namespace linkboy {

struct CopyPiece {
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
  std::size_t size = 0;  // bytes
};

/// Copies large, disjoint pieces on up to `num_threads` threads. The targets stay out of the
/// caches, as they are not read soon.
void stream_copy(const std::vector<CopyPiece>& pieces, int num_threads);

/// memcpy with stores that do not go through the caches, where the processor has them. A target at
/// a multiple of 16 bytes is best.
void stream_bytes(const CopyPiece& piece);

}  // namespace linkboy
