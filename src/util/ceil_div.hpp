#pragma once

#include <cstdint>

namespace linkboy {

/// a / b, rounded up, for a >= 0 and b >= 1. (a + b - 1) / b could overflow.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace linkboy
