#include "linkboy/metrics/recall_score.hpp"

#include <ATen/ATen.h>

namespace linkboy {

RecallScore::RecallScore(const ClassificationOptions& options)
    : ClassCountsMetric(options, {.average = options.average}) {}

RecallScore::Fraction RecallScore::fraction_of(const Counts& counts) const {
  return {counts.true_positives, counts.true_positives + counts.false_negatives};
}

}  // namespace linkboy
