#pragma once

#include <torch/optim/optimizer.h>

#include "linkboy/scheduler.hpp"

namespace linkboy {

/// Sets a field of the options.
/// @throws Error if the options do not have the field.
void set_param_group_field(torch::optim::OptimizerOptions& options, ParamGroupField field,
                           double value);

}  // namespace linkboy
