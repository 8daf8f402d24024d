#include "linkboy/metrics/accuracy.hpp"

#include <ATen/ATen.h>

namespace linkboy {
namespace {

/// A sample is right or not whatever its class, so that class 1 has no accuracy of its own.
Average without_binary(const AccuracyOptions& options) {
  const bool is_binary = options.average == Average::binary && options.num_classes == 2;
  return is_binary ? Average::micro : options.average;
}

}  // namespace

Accuracy::Accuracy(const AccuracyOptions& options)
    : ClassCountsMetric(ClassPredictionOptions{.num_classes = options.num_classes,
                                               .top_k = options.top_k,
                                               .ignore_index = options.ignore_index,
                                               .threshold = options.threshold},
                        {.average = without_binary(options)}) {}

Accuracy::Fraction Accuracy::fraction_of(const Counts& counts) const {
  return {counts.true_positives, counts.true_positives + counts.false_negatives};
}

}  // namespace linkboy
