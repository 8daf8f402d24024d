#pragma once

#include <cstdint>

namespace linkboy {

/// Returns a / b, rounded up, for a >= 0 and b >= 1. Avoids (a + b - 1) / b, which could overflow.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace linkboy
