#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "linkboy/export.hpp"
#include "linkboy/metrics/metric.hpp"

namespace linkboy {

/// A batch in the layout that the regression metrics accumulate.
struct RegressionRows {
  /// The outputs, [rows, num_outputs].
  at::Tensor outputs;
  /// The targets, [rows, num_outputs].
  at::Tensor targets;
};

/// Returns the outputs and targets as [rows, num_outputs], in double precision and without
/// gradients. If `num_outputs` is 1, accepts tensors of any shape, and each element is a row.
/// Otherwise accepts [N, num_outputs].
///
/// @param metric  Name of the metric in errors.
/// @throws Error if the shapes differ or are invalid, or if a dtype is complex.
LINKBOY_API RegressionRows regression_rows(const at::Tensor& outputs, const at::Tensor& targets,
                                           int64_t num_outputs, std::string_view metric);

/// @throws OptionError if `num_outputs` is less than 1.
LINKBOY_API void check_num_outputs(int64_t num_outputs, std::string_view metric);

/// Base class of metrics that average an elementwise error over the rows.
class LINKBOY_API MeanErrorMetric : public Metric {
 public:
  /// @throws Error if the shapes do not match, or if a dtype is complex.
  void update(const at::Tensor& outputs, const at::Tensor& targets) override;

 protected:
  /// @param name   Name of the metric in errors.
  /// @param error  Converts the differences (output - target) to errors, element by element.
  /// @throws OptionError if `num_outputs` is less than 1.
  MeanErrorMetric(const char* name, int64_t num_outputs, at::Tensor (*error)(const at::Tensor&));

  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  const char* name_;
  int64_t num_outputs_;
  at::Tensor (*error_)(const at::Tensor&);
};

}  // namespace linkboy
