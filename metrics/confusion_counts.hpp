#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_predictions.hpp"
#include "linkboy/metrics/metric.hpp"

namespace linkboy {

/// Base class of metrics that are computed from the confusion matrix, which counts the samples for
/// each pair of label and prediction. Keeps num_classes^2 counts.
class LINKBOY_API ConfusionCountsMetric : public Metric {
 public:
  /// Adds a batch. `predict_classes` describes the outputs and targets.
  /// @throws Error under the same conditions as `predict_classes`.
  void update(const at::Tensor& outputs, const at::Tensor& targets) override;

 protected:
  /// @throws OptionError if an option is out of range.
  explicit ConfusionCountsMetric(ClassPredictionOptions options);

  /// Returns the value for a confusion matrix.
  /// @param counts  double [num_classes, num_classes]; rows are labels, columns are predictions.
  virtual at::Tensor value_of_counts(const at::Tensor& counts) const = 0;

  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  ClassPredictionOptions options_;
  std::size_t counts_;
  std::size_t label_rule_;
};

}  // namespace linkboy
