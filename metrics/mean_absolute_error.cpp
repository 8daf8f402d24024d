// The absolute difference, which MeanErrorMetric in regression_rows.cpp averages over the rows.

#include "linkboy/metrics/mean_absolute_error.hpp"

#include <ATen/ATen.h>

namespace linkboy {

MeanAbsoluteError::MeanAbsoluteError(MeanAbsoluteErrorOptions options)
    : MeanErrorMetric("MeanAbsoluteError", options.num_outputs, at::abs) {}

}  // namespace linkboy
