#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"

namespace linkboy {

/// The part of the samples predicted to be of a class that is of it. 0 without such samples.
class LINKBOY_API PrecisionScore : public ClassCountsMetric {
 public:
  /// What `make<PrecisionScore>({...})` takes.
  using Options = ClassificationOptions;

  /// @throws Error if the options are not allowed.
  explicit PrecisionScore(const ClassificationOptions& options)
      : ClassCountsMetric(options, {.average = options.average, .false_positive_weight = 1.0}) {}
};

}  // namespace linkboy
