#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "html_records.hpp"

namespace linkboy {

struct LinePoint {
  double x;  // pixels
  double y;  // NaN if the line has a gap here
  const MetricPoint* record;
};

using ChartLine = std::vector<LinePoint>;

/// Returns the `d` of a <path>. With more than 2,000 points, it contains only those that show the
/// extent of the line in each column of pixels.
std::string path_of(const ChartLine& line);

/// Whether there are many values whose total up and down movement is much larger than their range.
bool is_noisy(const std::vector<double>& values);

/// Returns the number of neighbours on each side that `moving_average` uses for `count` values.
std::size_t average_reach(std::size_t count);

/// Returns the mean of each value and its neighbours. Ignores values that are not finite.
std::vector<double> moving_average(const std::vector<double>& values);

}  // namespace linkboy
