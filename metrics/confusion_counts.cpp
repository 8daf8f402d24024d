// Counts the pairs of label and prediction without a wait for the device.

#include "linkboy/metrics/confusion_counts.hpp"

#include <ATen/ATen.h>

namespace linkboy {

ConfusionCountsMetric::ConfusionCountsMetric(ClassPredictionOptions options) : options_(options) {
  options_.check();
  const int64_t size = options_.num_classes;
  counts_ = add_state("confusion_matrix", at::zeros({size, size}, at::kLong), Merge::sum);
  label_rule_ = add_rule(options_.label_rule());
}

void ConfusionCountsMetric::update(const at::Tensor& outputs, const at::Tensor& targets) {
  const ClassPredictions batch = predict_classes(outputs, targets, options_);
  follow(outputs);
  if (batch.is_out_of_range.defined()) count_violations(label_rule_, batch.is_out_of_range);
  // bincount would wait for the device.
  state(counts_).view({-1}).index_add_(0, batch.labels * *options_.num_classes + batch.predicted,
                                       batch.counts);
}

at::Tensor ConfusionCountsMetric::value_of(const std::vector<at::Tensor>& states) const {
  return value_of_counts(states[counts_].to(at::kDouble));
}

}  // namespace linkboy
