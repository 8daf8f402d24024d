// For processors without an implementation that bypasses the caches.

#include <cstring>

#include "checkpoint/stream_copy.hpp"

namespace linkboy {

void stream_bytes(const CopyPiece& piece) {
  if (piece.size > 0) std::memcpy(piece.target, piece.source, piece.size);
}

}  // namespace linkboy
