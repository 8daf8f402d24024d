#pragma once

#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/ranking_curve_metric.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// Area under the ROC curve: the probability that a positive sample has a higher score than a
/// negative one. Equal scores count half.
///
/// The value is a scalar; with RankingAverage::none and `num_classes`, its shape is [num_classes].
/// A class has the value NaN if all samples are positive, if all are negative, or before the first
/// sample. The mean excludes such a class, and is NaN if no class is left.
class LINKBOY_API AUROC : public RankingCurveMetric {
 public:
  /// The options type for `make<AUROC>({...})`.
  using Options = RankingCurveOptions;

  /// @throws OptionError if an option is out of range.
  explicit AUROC(RankingCurveOptions options = {}) : RankingCurveMetric("AUROC", options) {}

 protected:
  std::vector<double> values_of(const std::vector<RankingCurve>& curves) const override;
};
/// Makes an AUROC.
inline constexpr Maker<AUROC> auroc{};

}  // namespace linkboy
