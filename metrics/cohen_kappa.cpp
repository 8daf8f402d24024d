// Divides the weighted disagreement in the confusion matrix by the one expected by chance.

#include "linkboy/metrics/cohen_kappa.hpp"

#include <ATen/ATen.h>

namespace linkboy {

CohenKappa::CohenKappa(const CohenKappaOptions& options)
    : ConfusionCountsMetric({.num_classes = options.num_classes,
                             .ignore_index = options.ignore_index,
                             .threshold = options.threshold}),
      weights_(options.weights) {}

at::Tensor CohenKappa::value_of_counts(const at::Tensor& counts) const {
  const at::Tensor by_chance = at::outer(counts.sum(1), counts.sum(0)) / counts.sum();
  const at::Tensor classes = at::arange(counts.size(0), at::kDouble);
  const at::Tensor distance = (classes.unsqueeze(1) - classes).abs();
  at::Tensor weights = distance;
  if (weights_ == KappaWeights::none) weights = distance.ne(0);
  if (weights_ == KappaWeights::quadratic) weights = distance.square();
  return 1.0 - (weights * counts).sum() / (weights * by_chance).sum();
}

}  // namespace linkboy
