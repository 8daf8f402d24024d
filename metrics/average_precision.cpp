// The area under the precision-recall curve as a sum of rectangles, one for each threshold.

#include "linkboy/metrics/average_precision.hpp"

#include <ATen/ATen.h>

namespace linkboy {
namespace {

double step_area(const RankingCurve& curve) {
  const at::Tensor hits = curve.true_positives.to(at::kDouble);
  // Above the highest score the precision is 0/0, but the gain there is 0.
  const at::Tensor precision = (hits / (hits + curve.false_positives)).nan_to_num(0.0);
  const at::Tensor gains = hits.diff(1, 0, /*prepend=*/at::zeros({1}, at::kDouble));
  return (gains * precision).sum().item<double>() / static_cast<double>(curve.num_positives);
}

}  // namespace

std::vector<double> AveragePrecision::values_of(const std::vector<RankingCurve>& curves) const {
  std::vector<double> values;
  values.reserve(curves.size());
  for (const auto& curve : curves) {
    values.push_back(curve.num_positives == 0 ? 0.0 : step_area(curve));
  }
  return values;
}

}  // namespace linkboy
