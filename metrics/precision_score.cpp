#include "linkboy/metrics/precision_score.hpp"

#include <ATen/ATen.h>

namespace linkboy {

PrecisionScore::PrecisionScore(const ClassificationOptions& options)
    : ClassCountsMetric(options, {.average = options.average}) {}

PrecisionScore::Fraction PrecisionScore::fraction_of(const Counts& counts) const {
  return {counts.true_positives, counts.true_positives + counts.false_positives};
}

}  // namespace linkboy
