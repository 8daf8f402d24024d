// Outputs and targets for tests of metrics.

#pragma once

#include <torch/torch.h>

#include <limits>

namespace linkboy::testing {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Returns multiples of 1/8, whose sums and squares are exact in any order.
inline torch::Tensor eighths(int64_t rows) {
  return (torch::arange(rows) * 5 % 8).to(torch::kFloat) / 8;
}
inline torch::Tensor halves(int64_t rows) {
  return (torch::arange(rows) * 3 % 4).to(torch::kFloat) / 2;
}
inline torch::Tensor bits(int64_t rows) { return torch::arange(rows) * 3 % 4 % 2; }
inline torch::Tensor labels(int64_t rows) { return torch::arange(rows) * 2 % 3; }
inline torch::Tensor scores(int64_t rows) {
  return torch::stack({eighths(rows), halves(rows) / 2, eighths(rows).flip(0)}, 1);
}

}  // namespace linkboy::testing
