// The area under the ROC curve by the trapezoidal rule, in which equal scores count half.

#include "linkboy/metrics/auroc.hpp"

#include <ATen/ATen.h>

#include <limits>

namespace linkboy {
namespace {

double trapezoid_area(const RankingCurve& curve) {
  const double num_pairs =
      static_cast<double>(curve.num_positives) * static_cast<double>(curve.num_negatives);
  if (num_pairs == 0.0) return std::numeric_limits<double>::quiet_NaN();
  // In double, because the area for 2^31 positives and 2^31 negatives would overflow an int64.
  const at::Tensor heights = curve.true_positives.to(at::kDouble);
  const at::Tensor doubled_heights = heights.slice(0, 1) + heights.slice(0, 0, -1);
  const at::Tensor doubled_area =
      (curve.false_positives.to(at::kDouble).diff() * doubled_heights).sum();
  return doubled_area.item<double>() / (2.0 * num_pairs);
}

}  // namespace

std::vector<double> AUROC::values_of(const std::vector<RankingCurve>& curves) const {
  std::vector<double> values;
  values.reserve(curves.size());
  for (const auto& curve : curves) values.push_back(trapezoid_area(curve));
  return values;
}

}  // namespace linkboy
