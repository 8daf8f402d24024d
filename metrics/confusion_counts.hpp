#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_predictions.hpp"
#include "linkboy/metrics/metric.hpp"

namespace linkboy {

/// A metric of the confusion matrix: how often each label met each prediction. Keeps
/// num_classes^2 counts.
class LINKBOY_API ConfusionCountsMetric : public Metric {
 public:
  /// Outputs and targets as `predict_classes` takes them.
  void update(const at::Tensor& outputs, const at::Tensor& targets) override;

 protected:
  /// @throws Error if the options are not allowed.
  explicit ConfusionCountsMetric(ClassPredictionOptions options);

  /// @param counts  double [num_classes, num_classes]; labels are rows, predictions columns.
  virtual at::Tensor value_of_counts(const at::Tensor& counts) const = 0;

  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  ClassPredictionOptions options_;
  std::size_t counts_;
  std::size_t label_rule_;
};

}  // namespace linkboy
