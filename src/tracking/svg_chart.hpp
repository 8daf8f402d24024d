#pragma once

#include <string>
#include <vector>

#include "html_records.hpp"

namespace linkboy {

/// Metrics that are drawn over one another.
struct Chart {
  std::string title;
  bool by_epoch = false;  // or by update
  bool is_logarithmic = false;
  std::vector<const MetricRecords*> metrics{};
};

/// Charts for the metrics: those whose names differ in "train", "eval" and the like alone are in
/// one, and losses come first. Learning rates that span more than two decades are logarithmic.
std::vector<Chart> charts_of(const std::vector<MetricRecords>& metrics);

/// An <svg> element: axes, grid, and for each metric a group
/// `<g class="series" data-metric="name" data-points="records">` with
///   - `<path class="line">`, broken where a value is not finite: one command for each finite value
///     up to 2,000; of more, those that show the extent in each column of pixels;
///   - `<path class="average">` if there are many values and they are noisy;
///   - `<circle class="point">` for each value if there are few, or `<circle class="spot">` that
///     show when pointed at for some;
///   - `<path class="gap">` for values that are not finite.
std::string svg_chart(const Chart& chart);

/// An <svg> element with a bar for each bin.
std::string svg_histogram(const HistogramRecord& record);

}  // namespace linkboy
