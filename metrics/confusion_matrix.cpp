// Divides the counts by the number of samples per label, per prediction or in total.

#include "linkboy/metrics/confusion_matrix.hpp"

#include <ATen/ATen.h>

namespace linkboy {

ConfusionMatrix::ConfusionMatrix(const ConfusionMatrixOptions& options)
    : ConfusionCountsMetric({.num_classes = options.num_classes,
                             .ignore_index = options.ignore_index,
                             .threshold = options.threshold}),
      normalize_(options.normalize) {}

at::Tensor ConfusionMatrix::value_of_counts(const at::Tensor& counts) const {
  switch (normalize_) {
    case Normalize::none:
      return counts;
    case Normalize::labels:
      return (counts / counts.sum(1, /*keepdim=*/true)).nan_to_num();
    case Normalize::predictions:
      return (counts / counts.sum(0, /*keepdim=*/true)).nan_to_num();
    case Normalize::all:
      return (counts / counts.sum()).nan_to_num();
  }
  return counts;
}

}  // namespace linkboy
