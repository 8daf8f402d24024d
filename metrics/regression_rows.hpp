#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "linkboy/export.hpp"
#include "linkboy/metrics/metric.hpp"

namespace linkboy {

/// A batch as the regression metrics add it up.
struct RegressionRows {
  /// See `regression_rows`.
  at::Tensor outputs;
  /// Both have the same shape.
  at::Tensor targets;
};

/// Both as [rows, num_outputs] in double precision, without gradients. With one output tensors of
/// any shape are taken, of which each element is a row; else [N, num_outputs].
///
/// @param metric  Named in the error.
/// @throws Error if the shapes differ or do not fit, or a dtype is complex.
LINKBOY_API RegressionRows regression_rows(const at::Tensor& outputs, const at::Tensor& targets,
                                           int64_t num_outputs, std::string_view metric);

/// @throws Error if `num_outputs` is less than 1.
LINKBOY_API void check_num_outputs(int64_t num_outputs, std::string_view metric);

/// The mean over the rows of an error of each element.
class LINKBOY_API MeanErrorMetric : public Metric {
 public:
  /// @throws Error if the shapes do not fit, or a dtype is complex.
  void update(const at::Tensor& outputs, const at::Tensor& targets) override;

 protected:
  /// @param name   Named in errors.
  /// @param error  Of the differences of outputs and targets.
  /// @throws Error if `num_outputs` is less than 1.
  MeanErrorMetric(const char* name, int64_t num_outputs, at::Tensor (*error)(const at::Tensor&));

  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  const char* name_;
  int64_t num_outputs_;
  at::Tensor (*error_)(const at::Tensor&);
};

}  // namespace linkboy
