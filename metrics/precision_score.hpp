#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"

namespace linkboy {

/// Of the samples that were predicted to be of a class, the part that is. 0 where there are none.
class LINKBOY_API PrecisionScore : public ClassCountsMetric {
 public:
  /// What `make<PrecisionScore>({...})` takes.
  using Options = ClassificationOptions;

  /// @throws Error if the options are not allowed.
  explicit PrecisionScore(const ClassificationOptions& options)
      : ClassCountsMetric(options, {.average = options.average, .false_positive_weight = 1.0}) {}
};

}  // namespace linkboy
