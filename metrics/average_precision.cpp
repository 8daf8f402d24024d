#include "linkboy/metrics/average_precision.hpp"

#include <ATen/ATen.h>

#include <limits>

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
  const bool is_binary = curves.size() == 1;
  const bool is_all_of_class_0 = !is_binary && curves[0].num_negatives == 0;
  const bool is_absent_zero = !is_exact() || is_binary || is_all_of_class_0;
  const double value_of_absent = is_absent_zero ? 0.0 : std::numeric_limits<double>::quiet_NaN();
  std::vector<double> values;
  values.reserve(curves.size());
  for (const auto& curve : curves) {
    values.push_back(curve.num_positives == 0 ? value_of_absent : step_area(curve));
  }
  return values;
}

}  // namespace linkboy
