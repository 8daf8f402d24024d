#include "linkboy/metrics/recall.hpp"

#include <ATen/ATen.h>

namespace linkboy {

Recall::Recall(const ClassificationOptions& options)
    : ClassCountsMetric(options, {.average = options.average}) {}

Recall::Fraction Recall::fraction_of(const Counts& counts) const {
  return {counts.true_positives, counts.true_positives + counts.false_negatives};
}

}  // namespace linkboy
