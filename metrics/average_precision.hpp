#pragma once

#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/ranking_curve_metric.hpp"

namespace linkboy {

/// Average precision: the sum over the thresholds, from high to low, of the precision times the
/// gain in recall.
///
/// The value is a scalar; with RankingAverage::none [num_classes]. NaN before the first sample.
/// Without a positive sample it is what torchmetrics makes of it: 0 if there is one score, or with
/// `thresholds`; else a class has NaN, but 0 where all samples are of class 0.
class LINKBOY_API AveragePrecision : public RankingCurveMetric {
 public:
  /// What `make<AveragePrecision>({...})` takes.
  using Options = RankingCurveOptions;

  /// @throws Error if an option is out of its range.
  explicit AveragePrecision(RankingCurveOptions options = {})
      : RankingCurveMetric("AveragePrecision", options) {}

 protected:
  std::vector<double> values_of(const std::vector<RankingCurve>& curves) const override;
};

}  // namespace linkboy
