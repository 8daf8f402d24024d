#include "linkboy/metrics/precision.hpp"

#include <ATen/ATen.h>

namespace linkboy {

Precision::Precision(const ClassificationOptions& options)
    : ClassCountsMetric(options, {.average = options.average}) {}

Precision::Fraction Precision::fraction_of(const Counts& counts) const {
  return {counts.true_positives, counts.true_positives + counts.false_positives};
}

}  // namespace linkboy
