#pragma once

#include <string>
#include <vector>

namespace linkboy {

struct Tick {
  double value;
  std::string label;
};

/// Maps values to [0, 1]. Ticks are at 1, 2 or 5 times a power of ten.
class ChartAxis {
 public:
  /// Creates an axis for the finite values from `low` to `high`, rounded outwards to ticks.
  static ChartAxis linear(double low, double high);
  /// Creates an axis with a logarithmic scale. Both ends must be positive.
  static ChartAxis logarithmic(double low, double high);
  /// Creates an axis for counts. Ticks are at whole numbers, and the ends are not rounded.
  static ChartAxis counts(double low, double high);

  double position(double value) const;
  const std::vector<Tick>& ticks() const { return ticks_; }

 private:
  ChartAxis(double low, double high, bool is_logarithmic)
      : low_(low), high_(high), is_logarithmic_(is_logarithmic) {}

  double low_;
  double high_;
  bool is_logarithmic_;
  std::vector<Tick> ticks_;
};

}  // namespace linkboy
