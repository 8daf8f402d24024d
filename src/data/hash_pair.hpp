#pragma once

#include <cstdint>

namespace linkboy {

/// Hashes two words into one. Every input bit affects every output bit (SplitMix64's finaliser).
constexpr uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a + 0x9E3779B97F4A7C15U * (b + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

}  // namespace linkboy
