#include "linkboy/metrics/matthews_corr_coef.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <optional>

namespace linkboy {
namespace {

/// Returns the value for two classes in the special cases of torchmetrics; otherwise nullopt.
std::optional<double> value_at_the_edge(const at::Tensor& counts) {
  const auto count = [&](int64_t label, int64_t prediction) {
    return counts[label][prediction].item<double>();
  };
  const double right = count(0, 0) + count(1, 1);
  const double wrong = count(0, 1) + count(1, 0);
  if (wrong == 0.0) return right == 0.0 ? 0.0 : 1.0;
  if (right == 0.0) return -1.0;
  // If a row or column is empty, the other one has both a correct and a wrong count.
  const bool has_empty_row = (counts.sum(1) == 0).any().item<bool>();
  const bool has_empty_column = (counts.sum(0) == 0).any().item<bool>();
  if (!has_empty_row && !has_empty_column) return std::nullopt;
  return (right - wrong) / std::sqrt((right + wrong) * right * wrong);
}

}  // namespace

MatthewsCorrCoef::MatthewsCorrCoef(const MatthewsCorrCoefOptions& options)
    : ConfusionCountsMetric({.num_classes = options.num_classes,
                             .ignore_index = options.ignore_index,
                             .threshold = options.threshold}) {}

at::Tensor MatthewsCorrCoef::value_of_counts(const at::Tensor& counts) const {
  if (counts.size(0) == 2) {
    if (const auto value = value_at_the_edge(counts)) return at::scalar_tensor(*value, at::kDouble);
  }
  const at::Tensor labels = counts.sum(1);
  const at::Tensor predictions = counts.sum(0);
  const at::Tensor total = counts.sum();
  const at::Tensor covariance = counts.trace() * total - (labels * predictions).sum();
  const at::Tensor variances =
      (total.square() - predictions.square().sum()) * (total.square() - labels.square().sum());
  return at::where(variances != 0, covariance / variances.sqrt(), 0.0);
}

}  // namespace linkboy
