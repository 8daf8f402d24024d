#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// The fraction of a class's samples that are predicted correctly. 0 if the class has no samples.
class LINKBOY_API RecallScore : public ClassCountsMetric {
 public:
  /// The options type for `make<RecallScore>({...})`.
  using Options = ClassificationOptions;

  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  explicit RecallScore(const ClassificationOptions& options)
      : ClassCountsMetric(options, {.average = options.average, .false_negative_weight = 1.0}) {}
};
/// Makes a RecallScore.
inline constexpr Maker<RecallScore> recall_score{};

}  // namespace linkboy
