#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"

namespace linkboy {

/// The part of the samples of a class that was predicted to be of it. 0 without such samples.
class LINKBOY_API RecallScore : public ClassCountsMetric {
 public:
  /// What `make<RecallScore>({...})` takes.
  using Options = ClassificationOptions;

  /// @throws Error if the options are not allowed.
  explicit RecallScore(const ClassificationOptions& options)
      : ClassCountsMetric(options, {.average = options.average, .false_negative_weight = 1.0}) {}
};

}  // namespace linkboy
