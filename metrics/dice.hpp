#pragma once

#include <limits>

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"

namespace linkboy {

/// The Dice coefficient 2 |A n B| / (|A| + |B|), of the samples (pixels) of a class and those
/// predicted to be, counted over all batches. NaN for a class that does not occur, which the mean
/// leaves out; the mean is NaN if none does. The class `ignore_index` does not occur, even where it
/// is predicted.
class LINKBOY_API Dice : public ClassCountsMetric {
 public:
  /// What `make<Dice>({...})` takes.
  using Options = ClassificationOptions;

  /// @throws Error if the options are not allowed.
  explicit Dice(const ClassificationOptions& options)
      : ClassCountsMetric(options, {.average = options.average,
                                    .true_positive_weight = 2.0,
                                    .false_negative_weight = 1.0,
                                    .false_positive_weight = 1.0,
                                    .undefined_score = std::numeric_limits<double>::quiet_NaN(),
                                    .undefined_average = std::numeric_limits<double>::quiet_NaN(),
                                    .drop_ignored_class = true}) {}
};

}  // namespace linkboy
