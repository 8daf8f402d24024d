#pragma once

#include <torch/optim/optimizer.h>

#include "linkboy/scheduler.hpp"

namespace linkboy {

/// @throws Error if the options have no such field.
void set_param_group_field(torch::optim::OptimizerOptions& options, ParamGroupField field,
                           double value);

}  // namespace linkboy
