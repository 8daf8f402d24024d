#pragma once

#include <string>
#include <vector>

#include "html_records.hpp"

namespace linkboy {

/// Metrics that are drawn in one chart.
struct Chart {
  std::string title;
  bool by_epoch = false;  // otherwise by update
  bool is_logarithmic = false;
  std::vector<const MetricRecords*> metrics{};
};

/// Returns charts for the metrics. Metrics whose names differ only in words such as "train" and
/// "eval" share a chart, and losses come first. Learning rates that span more than two decades have
/// a logarithmic scale.
std::vector<Chart> charts_of(const std::vector<MetricRecords>& metrics);

/// Returns an <svg> element with axes, a grid and, for each metric, a group
/// `<g class="series" data-metric="name" data-points="records">` that contains:
/// - `<path class="line">`, with a gap where a value is not finite. It has one command per finite
///   value for up to 2,000 values; with more, only the commands that show the extent in each column
///   of pixels.
/// - `<path class="average">`, if there are many values and they are noisy.
/// - `<circle class="point">` for each value, if there are few. Otherwise, for some of the values,
///   `<circle class="spot">`, which is visible only under the mouse pointer.
/// - `<path class="gap">` for values that are not finite.
std::string svg_chart(const Chart& chart);

/// Returns an <svg> element with a bar for each bin.
std::string svg_histogram(const HistogramRecord& record);

}  // namespace linkboy
