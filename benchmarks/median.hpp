#pragma once

#include <algorithm>
#include <vector>

namespace linkboy::benchmarks {

/// Returns the middle value (the upper one if the number of values is even), or 0 without values.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace linkboy::benchmarks
