#include "chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lr_curve {
namespace {

struct Range {
  double low;
  double high;
};

/// Returns the range of the vertical axis. It starts at 0, or at the lowest value if that is at
/// least half of the highest.
Range range_of(const std::vector<double>& values) {
  const auto [lowest, highest] = std::minmax_element(values.begin(), values.end());
  const double low = *lowest < 0.5 * *highest ? 0.0 : *lowest;
  return {low, *highest > low ? *highest : low + 1.0};
}

/// Returns the range of values that column `index` of `count` shows; it has at least one value.
std::pair<std::size_t, std::size_t> part(std::size_t num_values, std::size_t index,
                                         std::size_t count) {
  const std::size_t begin = std::min(index * num_values / count, num_values - 1);
  return {begin, std::max(begin + 1, (index + 1) * num_values / count)};
}

std::string escaped(const std::string& text) {
  std::string result;
  for (char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

}  // namespace

std::string terminal_chart(const Curve& curve, int64_t width, int64_t height) {
  const auto [low, high] = range_of(curve.values);
  const auto num_columns = static_cast<std::size_t>(width);
  std::vector<std::string> rows(static_cast<std::size_t>(height), std::string(num_columns, ' '));
  auto row_of = [&, low = low, high = high](double value) {
    const double share = (value - low) / (high - low);
    return static_cast<std::size_t>(std::lround((1.0 - share) * static_cast<double>(height - 1)));
  };
  for (std::size_t column = 0; column < num_columns; ++column) {
    const auto [begin, end] = part(curve.values.size(), column, num_columns);
    const auto first = curve.values.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = curve.values.begin() + static_cast<std::ptrdiff_t>(end);
    const auto [lowest, highest] = std::minmax_element(first, last);
    for (std::size_t row = row_of(*highest); row <= row_of(*lowest); ++row) rows[row][column] = '*';
  }
  std::string chart = curve.field + "\n";
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::string label;
    if (row == 0) label = fmt::format("{:.3g}", high);
    if (row + 1 == rows.size()) label = fmt::format("{:.3g}", low);
    chart += fmt::format("{:>10} |{}\n", label,
                         rows[row].substr(0, rows[row].find_last_not_of(' ') + 1));
  }
  chart += fmt::format("{:>10} +{}\n", "", std::string(num_columns, '-'));
  chart += fmt::format("{:>10}  1{:>{}}\n", "", curve.values.size(), width - 1);
  return chart;
}

std::string svg_chart(const std::vector<Curve>& curves, const std::string& title) {
  constexpr int kWidth = 640;
  constexpr int kPanel = 220;
  constexpr int kLeft = 80;
  constexpr int kRight = 20;
  constexpr int kTop = 40;
  constexpr int kBottom = 40;
  constexpr double kPlotWidth = kWidth - kLeft - kRight;
  constexpr double kPlotHeight = kPanel - kTop - kBottom;
  constexpr std::size_t kMaxPoints = 2000;

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<title>{2}</title>\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      kWidth, kPanel * curves.size(), escaped(title));
  for (std::size_t panel = 0; panel < curves.size(); ++panel) {
    const Curve& curve = curves[panel];
    const auto [low, high] = range_of(curve.values);
    const std::size_t num_points = std::min(kMaxPoints, curve.values.size());
    std::string points;
    for (std::size_t i = 0; i < num_points; ++i) {
      const std::size_t k = num_points == 1 ? 0 : i * (curve.values.size() - 1) / (num_points - 1);
      const double along =
          num_points == 1 ? 0.0
                          : static_cast<double>(k) / static_cast<double>(curve.values.size() - 1);
      points += fmt::format("{:.2f},{:.2f} ", kLeft + along * kPlotWidth,
                            kTop + (high - curve.values[k]) / (high - low) * kPlotHeight);
    }
    svg += fmt::format(
        "<g transform=\"translate(0 {0})\">\n"
        "<text x=\"{1}\" y=\"24\">{2}</text>\n"
        "<path d=\"M{1} {3} V{4} H{5}\" fill=\"none\" stroke=\"#888\"/>\n"
        "<text x=\"{6}\" y=\"{7}\" text-anchor=\"end\">{8:.3g}</text>\n"
        "<text x=\"{6}\" y=\"{4}\" text-anchor=\"end\">{9:.3g}</text>\n"
        "<text x=\"{1}\" y=\"{10}\">1</text>\n"
        "<text x=\"{5}\" y=\"{10}\" text-anchor=\"end\">{11}</text>\n"
        "<polyline points=\"{12}\" fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"1.5\"/>\n"
        "</g>\n",
        panel * kPanel, kLeft, escaped(panel == 0 ? title + ": " + curve.field : curve.field), kTop,
        kPanel - kBottom, kWidth - kRight, kLeft - 8, kTop + 10, high, low, kPanel - kBottom + 20,
        curve.values.size(), points);
  }
  return svg + "</svg>\n";
}

}  // namespace lr_curve
