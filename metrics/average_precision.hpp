#pragma once

#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/ranking_curve_metric.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// Average precision: the sum over the thresholds, from high to low, of the precision times the
/// increase in recall.
///
/// The value is a scalar; with RankingAverage::none and `num_classes`, its shape is [num_classes].
/// The value is NaN before the first sample. As in scikit-learn, a class without positive samples
/// has the value 0.
class LINKBOY_API AveragePrecision : public RankingCurveMetric {
 public:
  /// The options type for `make<AveragePrecision>({...})`.
  using Options = RankingCurveOptions;

  /// @throws OptionError if an option is out of range.
  explicit AveragePrecision(RankingCurveOptions options = {})
      : RankingCurveMetric("AveragePrecision", options) {}

 protected:
  std::vector<double> values_of(const std::vector<RankingCurve>& curves) const override;
};
/// Makes an AveragePrecision.
inline constexpr Maker<AveragePrecision> average_precision{};

}  // namespace linkboy
