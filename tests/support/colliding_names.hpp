#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace linkboy::testing {

/// Returns names of 16 bytes that all have the same std::hash, as in a hostile file. libstdc++'s
/// hash does not use a secret, so for each first block of 8 bytes the second one can be computed.
/// @param is_text  If true, the names consist of printable ASCII without quotation marks and
///        backslashes; they take longer to find.
/// @throws std::logic_error if the standard library has another hash.
inline std::vector<std::string> colliding_names(std::size_t count, bool is_text) {
  constexpr uint64_t kMultiplier = 0xc6a4a7935bd1e995;  // of MurmurHash64A
  uint64_t inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - kMultiplier * inverse;
  const auto mix = [](uint64_t value) { return value ^ value >> 47; };
  const auto is_fit = [is_text](uint64_t block) {
    for (int i = 0; is_text && i < 64; i += 8) {
      const auto byte = static_cast<unsigned char>(block >> i);
      if (byte <= 0x20 || byte >= 0x7f || byte == '"' || byte == '\\') return false;
    }
    return true;
  };
  constexpr uint64_t kSeed = 0xc70f6907 ^ 16 * kMultiplier;
  constexpr uint64_t kTarget = 0x0123456789abcdef;  // the state after both blocks
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz012345";

  std::vector<std::string> names;
  for (uint64_t number = 0; names.size() < count; ++number) {
    std::string name(16, '\0');
    for (std::size_t i = 0; i < 8; ++i) name[i] = kLetters[number >> 5 * i & 31];
    uint64_t first = 0;
    std::memcpy(&first, name.data(), 8);
    const uint64_t state = (kSeed ^ mix(first * kMultiplier) * kMultiplier) * kMultiplier;
    const uint64_t second = mix((state ^ kTarget) * inverse) * inverse;
    if (!is_fit(second)) continue;
    std::memcpy(name.data() + 8, &second, 8);
    names.push_back(name);
  }
  const std::hash<std::string> hash;
  if (count > 1 && hash(names.front()) != hash(names.back())) {
    throw std::logic_error("this standard library has another hash: solve for that one");
  }
  return names;
}

}  // namespace linkboy::testing
