#pragma once

#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/ranking_curve_metric.hpp"

namespace linkboy {

/// Area under the ROC curve: how probable it is that a positive sample has a higher score than a
/// negative one; equal scores count half.
///
/// The value is a scalar; with RankingAverage::none [num_classes]. 0 where all samples of a class
/// are positive or all negative; NaN before the first sample.
class LINKBOY_API AUROC : public RankingCurveMetric {
 public:
  /// What `make<AUROC>({...})` takes.
  using Options = RankingCurveOptions;

  /// @throws Error if an option is out of its range.
  explicit AUROC(RankingCurveOptions options = {}) : RankingCurveMetric("AUROC", options) {}

 protected:
  std::vector<double> values_of(const std::vector<RankingCurve>& curves) const override;
};

}  // namespace linkboy
