#include "linkboy/metrics/iou.hpp"

#include <ATen/ATen.h>

#include <limits>

namespace linkboy {

IoU::IoU(const ClassificationOptions& options)
    : ClassCountsMetric(options, {.average = options.average,
                                  .undefined_average = std::numeric_limits<double>::quiet_NaN(),
                                  .drop_ignored_class = true}) {}

IoU::Fraction IoU::fraction_of(const Counts& counts) const {
  return {counts.true_positives,
          counts.true_positives + counts.false_positives + counts.false_negatives};
}

}  // namespace linkboy
