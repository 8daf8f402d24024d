// Counts the elements of a tensor in TensorBoard's buckets, a piece at a time to limit the memory.

#include "histogram.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>

namespace linkboy {
namespace {

/// Number of elements that are counted at a time. Limited, because the copies in double precision
/// need more memory than the elements.
constexpr int64_t kPiece = int64_t{1} << 24;

std::vector<double> make_bucket_limits() {
  std::vector<double> positive;
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
  positive.push_back(std::numeric_limits<double>::max());
  std::vector<double> limits;
  for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) limits.push_back(-*limit);
  limits.push_back(0.0);
  limits.insert(limits.end(), positive.begin(), positive.end());
  return limits;
}

const std::vector<double>& bucket_limits() {
  static const std::vector<double> limits = make_bucket_limits();
  return limits;
}

/// Returns [min, max, sum, sum of squares, number, number omitted, count of each bucket] of some
/// elements.
at::Tensor summarize(const at::Tensor& piece, const at::Tensor& limits) {
  const at::Tensor all = piece.to(at::kDouble);
  const at::Tensor finite = all.masked_select(all.isfinite());
  const at::Tensor infinity =
      at::full({1}, std::numeric_limits<double>::infinity(), finite.options());
  // The infinities are the minimum and the maximum if there are no finite elements.
  const auto num = static_cast<double>(finite.numel());
  const auto num_left_out = static_cast<double>(all.numel() - finite.numel());
  const at::Tensor head =
      at::stack({at::cat({finite, infinity}).min(), at::cat({finite, -infinity}).max(),
                 finite.sum(), finite.square().sum(), at::full({}, num, finite.options()),
                 at::full({}, num_left_out, finite.options())});
  const at::Tensor bucket = at::bucketize(finite, limits, /*out_int32=*/false, /*right=*/true)
                                .clamp_max(limits.numel() - 1);
  return at::cat({head, at::bincount(bucket, {}, limits.numel()).to(at::kDouble)});
}

void keep_buckets(Histogram& histogram, const double* counts) {
  const std::vector<double>& limits = bucket_limits();
  for (std::size_t i = 0; i < limits.size(); ++i) {
    const bool is_empty = counts[i] == 0.0;
    if (is_empty && histogram.counts.empty()) continue;
    if (is_empty && histogram.counts.back() == 0.0) {
      histogram.limits.back() = limits[i];
      continue;
    }
    histogram.limits.push_back(limits[i]);
    histogram.counts.push_back(counts[i]);
  }
  if (!histogram.counts.empty() && histogram.counts.back() == 0.0) {
    histogram.limits.pop_back();
    histogram.counts.pop_back();
  }
}

}  // namespace

Histogram make_histogram(const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  at::Tensor strided = values.detach();
  if (strided.layout() != at::kStrided) strided = strided.to_dense();
  const at::Tensor limits = at::tensor(bucket_limits(), at::kDouble).to(strided.device());

  Histogram histogram{.min = std::numeric_limits<double>::infinity(),
                      .max = -std::numeric_limits<double>::infinity()};
  std::vector<double> counts(bucket_limits().size());
  for (const at::Tensor& piece : strided.flatten().split(kPiece)) {
    const at::Tensor summary = summarize(piece, limits).cpu();
    const auto* number = summary.const_data_ptr<double>();
    histogram.min = std::min(histogram.min, number[0]);
    histogram.max = std::max(histogram.max, number[1]);
    histogram.sum += number[2];
    histogram.sum_squares += number[3];
    histogram.num += number[4];
    histogram.num_non_finite += static_cast<int64_t>(number[5]);
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += number[6 + i];
  }
  keep_buckets(histogram, counts.data());
  return histogram;
}

}  // namespace linkboy
