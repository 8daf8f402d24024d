#pragma once

#include <limits>

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// Intersection over union (Jaccard index) of the samples (pixels) of a class and the samples that
/// are predicted as that class. An absent class, which is neither a label nor predicted, has the
/// value 0 and is left out of the mean; if all classes are absent, the mean is NaN. The class
/// `ignore_index` is treated as absent, even if it is predicted.
class LINKBOY_API IoU : public ClassCountsMetric {
 public:
  /// The options type for `make<IoU>({...})`.
  using Options = ClassificationOptions;

  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  explicit IoU(const ClassificationOptions& options)
      : ClassCountsMetric(options, {.average = options.average,
                                    .false_negative_weight = 1.0,
                                    .false_positive_weight = 1.0,
                                    .undefined_average = std::numeric_limits<double>::quiet_NaN(),
                                    .drop_ignored_class = true}) {}
};
/// Makes an IoU.
inline constexpr Maker<IoU> iou{};

}  // namespace linkboy
