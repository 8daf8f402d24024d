#pragma once

#include "linkboy/run/options.hpp"

namespace torch::optim {
class Optimizer;
}

namespace linkboy {

class Accelerator;

/// @throws Error if an option is out of its range, or something that a run needs is missing.
void check_train_options(const TrainOptions& options, const torch::optim::Optimizer* optimizer);
void check_evaluate_options(const EvaluateOptions& options);
/// @throws Error if `accelerator` cannot do what the options want.
void check_accelerator_options(const Accelerator& accelerator, const TrainOptions& options);

}  // namespace linkboy
