// For x86-64 processors, all of which have SSE2.

#include <emmintrin.h>

#include <cstdint>
#include <cstring>

#include "checkpoint/stream_copy.hpp"

namespace linkboy {

void stream_bytes(const CopyPiece& piece) {
  auto* target = piece.target;
  const auto* source = piece.source;
  std::size_t left = piece.size;
  const std::size_t to_boundary = -reinterpret_cast<std::uintptr_t>(target) % 16;
  if (left < to_boundary + 64) {
    std::memcpy(target, source, left);
    return;
  }
  std::memcpy(target, source, to_boundary);
  target += to_boundary;
  source += to_boundary;
  left -= to_boundary;
  for (; left >= 64; target += 64, source += 64, left -= 64) {
    const auto* from = reinterpret_cast<const __m128i*>(source);
    auto* to = reinterpret_cast<__m128i*>(target);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  _mm_sfence();  // makes the streamed stores visible to other threads
  std::memcpy(target, source, left);
}

}  // namespace linkboy
