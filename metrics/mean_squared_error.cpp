// The squared difference, which MeanErrorMetric in regression_rows.cpp averages, and optionally the
// root of the mean.

#include "linkboy/metrics/mean_squared_error.hpp"

#include <ATen/ATen.h>

namespace linkboy {

MeanSquaredError::MeanSquaredError(MeanSquaredErrorOptions options)
    : MeanErrorMetric("MeanSquaredError", options.num_outputs, at::square),
      is_squared_(options.squared) {}

at::Tensor MeanSquaredError::value_of(const std::vector<at::Tensor>& states) const {
  const at::Tensor mean = MeanErrorMetric::value_of(states);
  return is_squared_ ? mean : mean.sqrt();
}

}  // namespace linkboy
