#pragma once

#include <limits>

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"

namespace linkboy {

/// Intersection over union, the Jaccard index: of the samples (pixels) of a class or predicted to
/// be, the part that is both. 0 for a class that does not occur, which the mean leaves out; the
/// mean is NaN if none does. The class `ignore_index` does not occur, even where it is predicted.
class LINKBOY_API IoU : public ClassCountsMetric {
 public:
  /// What `make<IoU>({...})` takes.
  using Options = ClassificationOptions;

  /// @throws Error if the options are not allowed.
  explicit IoU(const ClassificationOptions& options)
      : ClassCountsMetric(options, {.average = options.average,
                                    .false_negative_weight = 1.0,
                                    .false_positive_weight = 1.0,
                                    .undefined_average = std::numeric_limits<double>::quiet_NaN(),
                                    .drop_ignored_class = true}) {}
};

}  // namespace linkboy
