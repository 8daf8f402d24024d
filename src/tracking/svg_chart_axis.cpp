#include "svg_chart_axis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace linkboy {
namespace {

/// The approximate maximum number of steps in the range.
constexpr double kSteps = 5.0;

/// Returns the smallest of 1, 2 and 5 times a power of ten that is not below `value`.
double nice_above(double value) {
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    // The tolerance allows for rounding errors in value / power.
    if (value / power <= factor * (1 + 1e-9)) return factor * power;
  }
  return 10 * power;
}

/// Returns the largest of 1, 2 and 5 times a power of ten that is not above `value`.
double nice_below(double value) {
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double factor : {5.0, 2.0}) {
    if (value / power >= factor * (1 - 1e-9)) return factor * power;
  }
  return power;
}

int exponent_of(double value) { return static_cast<int>(std::floor(std::log10(value) + 1e-9)); }

/// Returns a label with enough digits to distinguish ticks that are `step` apart.
std::string label_of(double value, double step, double largest) {
  if (std::abs(value) < step / 2) return "0";
  if (largest >= 1e6 || largest < 1e-3) {
    const int digits = exponent_of(std::abs(value)) - exponent_of(step);
    return fmt::format("{:.{}e}", value, std::max(digits, 0));
  }
  return fmt::format("{:.{}f}", value, std::max(-exponent_of(step), 0));
}

/// Returns a label with all digits, because neighbouring ticks far from 0 differ in the last ones.
std::string count_label(double value) {
  if (value >= 1e6) return fmt::format("{}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{}k", value / 1e3);
  return fmt::format("{}", value);
}

/// Returns a label such as "0.1", "0.001" or "1e-05".
std::string log_label(double value) { return fmt::format("{:g}", value); }

}  // namespace

ChartAxis ChartAxis::linear(double low, double high) {
  // Stays far from the limits of double, because the difference could overflow.
  low = std::clamp(low, -1e300, 1e300);
  high = std::clamp(high, -1e300, 1e300);
  const double size = std::max(std::abs(low), std::abs(high));
  if (high - low <= size * 1e-9) {
    const double margin = size < 1e-300 ? 1.0 : size / 10;
    low -= margin;
    high += margin;
  }
  const double step = nice_above((high - low) / kSteps);
  const double first = std::floor(low / step + 1e-9);
  const double last = std::ceil(high / step - 1e-9);
  ChartAxis axis(first * step, last * step, false);
  const double largest = std::max(std::abs(axis.low_), std::abs(axis.high_));
  for (double i = first; i <= last; ++i) {
    axis.ticks_.push_back({i * step, label_of(i * step, step, largest)});
  }
  return axis;
}

ChartAxis ChartAxis::logarithmic(double low, double high) {
  ChartAxis axis(nice_below(low), nice_above(high), true);
  const int first = exponent_of(axis.low_);
  const int last = exponent_of(axis.high_);
  const int stride = std::max(1, (last - first) / 6);
  for (int exponent = first; exponent <= last; exponent += stride) {
    const double decade = std::pow(10.0, exponent);
    if (decade >= axis.low_ * (1 - 1e-9)) axis.ticks_.push_back({decade, log_label(decade)});
  }
  return axis;
}

ChartAxis ChartAxis::counts(double low, double high) {
  if (high <= low) high = low + 1;
  ChartAxis axis(low, high, false);
  const double step = std::max(1.0, nice_above((high - low) / (kSteps + 1)));
  for (double value = std::ceil(low / step) * step; value <= high; value += step) {
    axis.ticks_.push_back({value, count_label(value)});
  }
  return axis;
}

double ChartAxis::position(double value) const {
  if (is_logarithmic_) return std::log(value / low_) / std::log(high_ / low_);
  return (std::clamp(value, -1e300, 1e300) - low_) / (high_ - low_);
}

}  // namespace linkboy
