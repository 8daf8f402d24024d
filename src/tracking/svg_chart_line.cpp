#include "svg_chart_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <span>

namespace linkboy {
namespace {

constexpr std::size_t kMostDrawn = 2000;
constexpr std::size_t kFewestForAverage = 100;

bool is_lower(const LinePoint& a, const LinePoint& b) { return a.y < b.y; }

/// Returns the lowest and the highest point of each column of pixels, in their original order.
ChartLine thinned(std::span<const LinePoint> part) {
  ChartLine result;
  for (auto begin = part.begin(); begin != part.end();) {
    const auto end = std::find_if(begin, part.end(), [&](const LinePoint& point) {
      return std::floor(point.x) != std::floor(begin->x);
    });
    const auto [lowest, highest] = std::minmax_element(begin, end, is_lower);
    result.push_back(*std::min(lowest, highest));
    if (lowest != highest) result.push_back(*std::max(lowest, highest));
    begin = end;
  }
  return result;
}

void append_part(std::string& path, std::span<const LinePoint> part, bool is_thinned) {
  const ChartLine fewer = is_thinned ? thinned(part) : ChartLine(part.begin(), part.end());
  for (std::size_t i = 0; i < fewer.size(); ++i) {
    fmt::format_to(std::back_inserter(path), "{}{:.1f},{:.1f}", i == 0 ? 'M' : 'L', fewer[i].x,
                   fewer[i].y);
  }
  // With round line ends, a line of length 0 shows a single point.
  if (fewer.size() == 1) path += "h0";
}

}  // namespace

std::string path_of(const ChartLine& line) {
  std::string path;
  const bool is_thinned = line.size() > kMostDrawn;
  const auto is_gap = [](const LinePoint& point) { return std::isnan(point.y); };
  for (auto begin = line.begin(); begin != line.end();) {
    const auto end = std::find_if(begin, line.end(), is_gap);
    append_part(path, {begin, end}, is_thinned);
    begin = std::find_if_not(end, line.end(), is_gap);
  }
  return path;
}

bool is_noisy(const std::vector<double>& values) {
  if (values.size() < kFewestForAverage) return false;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double low = kInfinity, high = -kInfinity, way = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    low = std::min(low, values[i]);
    high = std::max(high, values[i]);
    if (i > 0 && std::isfinite(values[i - 1])) way += std::abs(values[i] - values[i - 1]);
  }
  return way > 6 * (high - low);
}

std::size_t average_reach(std::size_t count) { return std::max<std::size_t>(3, count / 50); }

std::vector<double> moving_average(const std::vector<double>& values) {
  const std::size_t reach = average_reach(values.size());
  std::vector<double> result;
  std::size_t begin = 0, end = 0;
  int64_t finite = 0;
  double sum = 0.0;
  const auto add = [&](double value, int sign) {
    if (!std::isfinite(value)) return;
    sum += sign * value;
    finite += sign;
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (; end < std::min(values.size(), i + reach + 1); ++end) add(values[end], 1);
    for (; begin + reach < i; ++begin) add(values[begin], -1);
    result.push_back(finite > 0 ? sum / static_cast<double>(finite)
                                : std::numeric_limits<double>::quiet_NaN());
  }
  return result;
}

}  // namespace linkboy
