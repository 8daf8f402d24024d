// The checks of a run's options, which run_checks.cpp contains.

#pragma once

#include "linkboy/run/options.hpp"

namespace torch::optim {
class Optimizer;
}

namespace linkboy {

class Accelerator;

/// @throws OptionError if an option is out of range, or if a required option or the optimizer is
///         missing.
void check_train_options(const TrainOptions& options, const torch::optim::Optimizer* optimizer);
void check_evaluate_options(const EvaluateOptions& options);
/// @throws OptionError if `accelerator` does not support the options.
void check_accelerator_options(const Accelerator& accelerator, const TrainOptions& options);

}  // namespace linkboy
