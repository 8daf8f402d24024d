#include "svg_chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "html_text.hpp"
#include "svg_chart_axis.hpp"
#include "svg_chart_line.hpp"

namespace linkboy {
namespace {

constexpr double kWidth = 640;
constexpr double kHeight = 300;
constexpr double kRight = 14;
constexpr double kTop = 12;
constexpr double kBottom = 46;
/// The distance between the axes and the outermost points, so that no marker is cut off.
constexpr double kInset = 8;
constexpr double kLetter = 6.8;  // approximate width of a digit
constexpr std::size_t kMostMarkers = 60;
constexpr std::size_t kMostSpots = 100;
constexpr std::size_t kMostGaps = 50;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool is_empty() const { return low > high; }
};

double x_of(const Chart& chart, const MetricPoint& point) {
  return static_cast<double>(chart.by_epoch ? point.time.epoch : point.time.update);
}

ChartAxis x_axis(const Chart& chart) {
  Range range;
  for (const MetricRecords* metric : chart.metrics) {
    for (const MetricPoint& point : metric->points) range.include(x_of(chart, point));
  }
  if (range.is_empty()) return ChartAxis::counts(0, 1);
  // If the updates start near 0, the axis starts at 0.
  if (!chart.by_epoch && range.low < range.high / 10) range.low = 0;
  return ChartAxis::counts(range.low, range.high);
}

ChartAxis y_axis(const Chart& chart) {
  Range range;
  for (const MetricRecords* metric : chart.metrics) {
    for (const MetricPoint& point : metric->points) range.include(point.value);
  }
  if (range.is_empty()) return ChartAxis::linear(0, 1);
  return chart.is_logarithmic ? ChartAxis::logarithmic(range.low, range.high)
                              : ChartAxis::linear(range.low, range.high);
}

class ChartDrawing {
 public:
  explicit ChartDrawing(const Chart& chart)
      : chart_(chart), x_(x_axis(chart)), y_(y_axis(chart)), left_(left_margin(y_)) {}

  std::string svg() {
    fmt::format_to(out(),
                   "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" "
                   "data-scale=\"{}\">\n",
                   kWidth, kHeight, html_text(chart_.title),
                   chart_.is_logarithmic ? "log" : "linear");
    draw_y_axis();
    draw_x_axis();
    for (std::size_t i = 0; i < chart_.metrics.size(); ++i) draw_series(i);
    svg_ += "</svg>\n";
    return std::move(svg_);
  }

 private:
  static double left_margin(const ChartAxis& axis) {
    std::size_t letters = 0;
    for (const Tick& tick : axis.ticks()) letters = std::max(letters, tick.label.size());
    return 14 + kLetter * static_cast<double>(letters);
  }

  std::back_insert_iterator<std::string> out() { return std::back_inserter(svg_); }

  double px(double x) const {
    return left_ + kInset + x_.position(x) * (kWidth - kRight - left_ - 2 * kInset);
  }
  double py(double y) const {
    return kHeight - kBottom - y_.position(y) * (kHeight - kBottom - kTop);
  }

  void draw_y_axis() {
    svg_ += "<g class=\"axis\">\n";
    for (const Tick& tick : y_.ticks()) {
      const double y = py(tick.value);
      fmt::format_to(out(), "<path class=\"grid\" d=\"M{:.1f},{:.1f}H{:.1f}\"/>", left_, y,
                     kWidth - kRight);
      fmt::format_to(out(), "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
                     left_ - 7, y + 4, tick.label);
    }
    svg_ += "</g>\n";
  }

  void draw_x_axis() {
    const double bottom = kHeight - kBottom;
    svg_ += "<g class=\"axis\">\n";
    for (const Tick& tick : x_.ticks()) {
      const double x = px(tick.value);
      fmt::format_to(out(), "<path class=\"tick\" d=\"M{:.1f},{:.1f}v5\"/>", x, bottom);
      fmt::format_to(out(), "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", x,
                     bottom + 18, tick.label);
    }
    fmt::format_to(out(), "<path class=\"frame\" d=\"M{:.1f},{:.1f}H{:.1f}\"/>", left_, bottom,
                   kWidth - kRight);
    fmt::format_to(out(),
                   "<text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\" "
                   "text-anchor=\"middle\">{}</text>\n</g>\n",
                   (left_ + kWidth - kRight) / 2, kHeight - 8,
                   chart_.by_epoch ? "epoch" : "update");
  }

  ChartLine line_of(const MetricRecords& metric, const std::vector<double>& values) const {
    ChartLine line;
    for (std::size_t i = 0; i < metric.points.size(); ++i) {
      const bool is_finite = std::isfinite(metric.points[i].value);
      line.push_back({.x = px(x_of(chart_, metric.points[i])),
                      .y = is_finite ? py(values[i]) : std::numeric_limits<double>::quiet_NaN(),
                      .record = &metric.points[i]});
    }
    return line;
  }

  void draw_series(std::size_t index) {
    const MetricRecords& metric = *chart_.metrics[index];
    std::vector<double> values;
    for (const MetricPoint& point : metric.points) values.push_back(point.value);
    const ChartLine line = line_of(metric, values);
    const bool has_average = !chart_.is_logarithmic && is_noisy(values);
    fmt::format_to(out(),
                   "<g class=\"series s{}{}\" data-metric=\"{}\" data-points=\"{}\">\n"
                   "<path class=\"line\" d=\"{}\"/>\n",
                   index % 6, has_average ? " faint" : "", html_text(metric.name),
                   metric.points.size(), path_of(line));
    if (has_average) {
      fmt::format_to(out(),
                     "<path class=\"average\" d=\"{}\"><title>{}: mean of {} values</title>"
                     "</path>\n",
                     path_of(line_of(metric, moving_average(values))), html_text(metric.name),
                     2 * average_reach(values.size()) + 1);
    }
    draw_points(metric, line);
    draw_gaps(metric, line);
    svg_ += "</g>\n";
  }

  void draw_points(const MetricRecords& metric, const ChartLine& line) {
    const bool has_markers = line.size() <= kMostMarkers;
    const std::size_t stride = has_markers ? 1 : (line.size() + kMostSpots - 1) / kMostSpots;
    for (std::size_t i = 0; i < line.size(); i += stride) {
      if (std::isnan(line[i].y)) continue;
      fmt::format_to(out(),
                     "<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\">{}</circle>\n",
                     has_markers ? "point" : "spot", line[i].x, line[i].y, has_markers ? 3 : 5,
                     hover_title(metric, *line[i].record));
    }
  }

  void draw_gaps(const MetricRecords& metric, const ChartLine& line) {
    std::size_t count = 0;
    for (const LinePoint& point : line) {
      if (!std::isnan(point.y) || ++count > kMostGaps) continue;
      fmt::format_to(out(), "<path class=\"gap\" d=\"M{:.1f},{:.1f}l-5,-9h10z\">{}</path>\n",
                     point.x, kHeight - kBottom, hover_title(metric, *point.record));
    }
  }

  static std::string hover_title(const MetricRecords& metric, const MetricPoint& point) {
    return fmt::format("<title>{}\n{} (update {}, epoch {})</title>", html_text(metric.name),
                       html_number(point.value), point.time.update, point.time.epoch);
  }

  const Chart& chart_;
  ChartAxis x_;
  ChartAxis y_;
  double left_;
  std::string svg_;
};

}  // namespace

std::string svg_chart(const Chart& chart) { return ChartDrawing(chart).svg(); }

}  // namespace linkboy
