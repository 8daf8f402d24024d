#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace linkboy {

/// The distribution of the finite elements of a tensor over equal bins.
struct LinearHistogram {
  int64_t count = 0;       // finite elements
  int64_t non_finite = 0;  // all other elements
  double min = 0.0, max = 0.0, mean = 0.0, standard_deviation = 0.0;
  std::vector<double> edges;  // bins + 1; empty if there are no finite elements
  std::vector<int64_t> counts;
};

constexpr int kHistogramBins = 30;

/// Counts the elements. Copies `values` to the CPU if necessary.
LinearHistogram make_linear_histogram(const at::Tensor& values);

}  // namespace linkboy
