#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "linkboy/export.hpp"

namespace linkboy {

/// Looks at the values of a batch on the CPU.
///
/// @param is_violation  Bool, of the shape of `values`.
/// @param rule          What holds for all of them: "MetricName: labels must lie in [0, 9]."
/// @throws Error with the rule and the first value that breaks it.
LINKBOY_API void check_values(const at::Tensor& values, const at::Tensor& is_violation,
                              std::string_view rule);

}  // namespace linkboy
