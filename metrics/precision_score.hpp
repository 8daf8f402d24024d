#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// The fraction of a class's predictions that are correct. 0 if the class is never predicted.
class LINKBOY_API PrecisionScore : public ClassCountsMetric {
 public:
  /// The options type for `make<PrecisionScore>({...})`.
  using Options = ClassificationOptions;

  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  explicit PrecisionScore(const ClassificationOptions& options)
      : ClassCountsMetric(options, {.average = options.average, .false_positive_weight = 1.0}) {}
};
/// Makes a PrecisionScore.
inline constexpr Maker<PrecisionScore> precision_score{};

}  // namespace linkboy
