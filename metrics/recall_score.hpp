#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"

namespace linkboy {

/// Of the samples of a class, the part that was predicted to be. 0 where there are none.
class LINKBOY_API RecallScore : public ClassCountsMetric {
 public:
  /// What `make<RecallScore>({...})` takes.
  using Options = ClassificationOptions;

  /// @throws Error if the options are not allowed.
  explicit RecallScore(const ClassificationOptions& options)
      : ClassCountsMetric(options, {.average = options.average, .false_negative_weight = 1.0}) {}
};

}  // namespace linkboy
