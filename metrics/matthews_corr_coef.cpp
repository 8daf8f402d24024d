// The correlation of labels and predictions, computed from the sums of the confusion matrix.

#include "linkboy/metrics/matthews_corr_coef.hpp"

#include <ATen/ATen.h>

namespace linkboy {

MatthewsCorrCoef::MatthewsCorrCoef(const MatthewsCorrCoefOptions& options)
    : ConfusionCountsMetric({.num_classes = options.num_classes,
                             .ignore_index = options.ignore_index,
                             .threshold = options.threshold}) {}

at::Tensor MatthewsCorrCoef::value_of_counts(const at::Tensor& counts) const {
  const at::Tensor labels = counts.sum(1);
  const at::Tensor predictions = counts.sum(0);
  const at::Tensor total = counts.sum();
  const at::Tensor covariance = counts.trace() * total - (labels * predictions).sum();
  // Exactly 0 if there is only one class.
  const at::Tensor variances =
      (predictions * (total - predictions)).sum() * (labels * (total - labels)).sum();
  return at::where(variances != 0, covariance / variances.sqrt(), 0.0);
}

}  // namespace linkboy
