#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "html_records.hpp"

namespace linkboy {

struct LinePoint {
  double x;  // pixels
  double y;  // NaN: the line is broken here
  const MetricPoint* record;
};

using ChartLine = std::vector<LinePoint>;

/// The `d` of a <path>. Of more than 2,000 points only those remain that show the extent of the
/// line in each column of pixels.
std::string path_of(const ChartLine& line);

/// Whether there are many values, going up and down by much more than they cover.
bool is_noisy(const std::vector<double>& values);

/// How many neighbours on either side `moving_average` takes, of `count` values.
std::size_t average_reach(std::size_t count);

/// Each value's mean with its neighbours; values that are not finite do not count.
std::vector<double> moving_average(const std::vector<double>& values);

}  // namespace linkboy
