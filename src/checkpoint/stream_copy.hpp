#pragma once

#include <cstddef>
#include <vector>

namespace linkboy {

struct CopyPiece {
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
  std::size_t size = 0;  // bytes
};

/// Copies large, disjoint pieces on up to `num_threads` threads. The targets bypass the caches,
/// because they are not read soon.
void stream_copy(const std::vector<CopyPiece>& pieces, int num_threads);

/// Copies like memcpy, with stores that bypass the caches if the processor supports them. Fastest
/// if the target is aligned to 16 bytes.
void stream_bytes(const CopyPiece& piece);

}  // namespace linkboy
