#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace linkboy {

/// How the finite elements of a tensor are distributed.
struct Histogram {
  double min = 0.0;
  double max = 0.0;
  double sum = 0.0;
  double sum_squares = 0.0;
  double num = 0.0;
  int64_t num_non_finite = 0;
  /// The upper edges of the buckets, which do not belong to them, and how many elements each has.
  /// From the first to the last bucket that has any; of several empty ones in a row only the last.
  std::vector<double> limits{};
  std::vector<double> counts{};
};

/// The bounds of TensorBoard's buckets: 0, and from 1e-12 to 1e20 each a tenth wider than the one
/// before, on both sides of 0. Waits for the tensor's device.
Histogram make_histogram(const at::Tensor& values);

}  // namespace linkboy
