#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace linkboy {

/// The distribution of the finite elements of a tensor.
struct Histogram {
  double min = 0.0;
  double max = 0.0;
  double sum = 0.0;
  double sum_squares = 0.0;
  double num = 0.0;
  int64_t num_non_finite = 0;
  /// The upper edges of the buckets (exclusive) and the number of elements in each, from the first
  /// to the last bucket that is not empty. Of several consecutive empty buckets, only the last one
  /// is kept.
  std::vector<double> limits{};
  std::vector<double> counts{};
};

/// Counts the elements in TensorBoard's buckets. The bounds are 0 and, on both sides of it, values
/// from 1e-12 to 1e20, each 1.1 times the one before. Waits for the tensor's device.
Histogram make_histogram(const at::Tensor& values);

}  // namespace linkboy
