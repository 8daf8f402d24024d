// Builds dicts with keys from a file, after a check that the keys were not chosen to collide.

#include "checkpoint/collision_safe_dict.hpp"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

/// Lays the keys out as the table would with 8 to 16 slots per key. If they fit, the real table is
/// not larger than that.
void check_hashes(const std::vector<std::pair<c10::IValue, c10::IValue>>& entries) {
  const int bits = static_cast<int>(std::bit_width(entries.size())) + 3;
  constexpr uint64_t kMultiplier = 11400714819323198485U;  // of the table's Fibonacci hashing
  std::vector<uint64_t> homes;
  homes.reserve(entries.size());
  for (const auto& [key, value] : entries) {
    homes.push_back(kMultiplier * c10::detail::DictKeyHash()(key) >> (64 - bits));
  }
  std::sort(homes.begin(), homes.end());
  uint64_t next = 0;
  for (const uint64_t home : homes) {
    next = std::max(next, home);
    LINKBOY_CHECK(next - home < static_cast<uint64_t>(bits),
                  "it has a dict whose keys were chosen to exhaust the memory. Do not trust it.");
    ++next;
  }
}

}  // namespace

c10::impl::GenericDict make_guarded_dict(
    const std::vector<std::pair<c10::IValue, c10::IValue>>& entries) {
  check_hashes(entries);
  c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
  for (const auto& [key, value] : entries) dict.insert_or_assign(key, value);
  return dict;
}

}  // namespace linkboy
