#include "json_lines_histogram.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace linkboy {
namespace {

void set_statistics(LinearHistogram& histogram, std::span<const double> values) {
  histogram.min = std::numeric_limits<double>::infinity();
  histogram.max = -histogram.min;
  double mean = 0.0;
  double squares = 0.0;  // sum of squared distances from the mean (Welford)
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    ++histogram.count;
    histogram.min = std::min(histogram.min, value);
    histogram.max = std::max(histogram.max, value);
    const double distance = value - mean;
    mean += distance / static_cast<double>(histogram.count);
    squares += distance * (value - mean);
  }
  histogram.mean = mean;
  histogram.standard_deviation = std::sqrt(squares / static_cast<double>(histogram.count));
}

void set_bins(LinearHistogram& histogram, std::span<const double> values) {
  double low = histogram.min;
  double high = histogram.max;
  if (low == high) {
    const double half = 0.5 * std::max(1.0, std::abs(low));
    low -= half;
    high += half;
  }
  // Uses halves, because the difference of two large numbers can be infinite.
  const double half_range = high / 2 - low / 2;
  for (int i = 0; i <= kHistogramBins; ++i) {
    histogram.edges.push_back(low + half_range / kHistogramBins * (2 * i));
  }
  histogram.edges.back() = high;
  histogram.counts.resize(kHistogramBins);
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    const double position = (value / 2 - low / 2) / half_range * kHistogramBins;
    ++histogram.counts[std::clamp(static_cast<int>(position), 0, kHistogramBins - 1)];
  }
}

}  // namespace

LinearHistogram make_linear_histogram(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor on_cpu = tensor.detach().to(at::kCPU, at::kDouble).contiguous();
  const std::span<const double> values(on_cpu.const_data_ptr<double>(),
                                       static_cast<std::size_t>(on_cpu.numel()));
  LinearHistogram histogram;
  set_statistics(histogram, values);
  histogram.non_finite = on_cpu.numel() - histogram.count;
  if (histogram.count > 0) {
    set_bins(histogram, values);
  } else {
    histogram.min = histogram.max = histogram.mean = histogram.standard_deviation =
        std::numeric_limits<double>::quiet_NaN();
  }
  return histogram;
}

}  // namespace linkboy
