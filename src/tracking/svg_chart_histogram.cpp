#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "html_text.hpp"
#include "svg_chart.hpp"

namespace linkboy {

std::string svg_histogram(const HistogramRecord& record) {
  constexpr double kWidth = 320, kHeight = 120, kBottom = 100, kTop = 6;
  const LinearHistogram& histogram = record.histogram;
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" data-histogram=\"{}\">\n", kWidth,
      kHeight, html_text(record.name), histogram.count);
  const auto bins = histogram.counts.size();
  const int64_t most =
      bins == 0 ? 1 : *std::max_element(histogram.counts.begin(), histogram.counts.end());
  for (std::size_t i = 0; i < bins; ++i) {
    const double width = kWidth / static_cast<double>(bins);
    const double height =
        (kBottom - kTop) * static_cast<double>(histogram.counts[i]) / static_cast<double>(most);
    fmt::format_to(std::back_inserter(svg),
                   "<rect class=\"bar\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
                   "height=\"{:.1f}\"><title>{} to {}: {}</title></rect>\n",
                   width * static_cast<double>(i), kBottom - height, width - 1, height,
                   html_number(histogram.edges[i]), html_number(histogram.edges[i + 1]),
                   histogram.counts[i]);
  }
  fmt::format_to(std::back_inserter(svg),
                 "<g class=\"axis\"><path class=\"frame\" d=\"M0,{0}H{1}\"/>"
                 "<text x=\"0\" y=\"{2}\">{3}</text>"
                 "<text x=\"{1}\" y=\"{2}\" text-anchor=\"end\">{4}</text></g>\n</svg>\n",
                 kBottom, kWidth, kHeight - 4, html_number(histogram.min),
                 html_number(histogram.max));
  return svg;
}

}  // namespace linkboy
