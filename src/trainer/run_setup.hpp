#pragma once

#include <vector>

#include "linkboy/model.hpp"
#include "linkboy/run/options.hpp"
#include "linkboy/run/run_config.hpp"

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

/// Fills in the counts that follow from the batches of one process, the accumulation, the number of
/// processes and the length that was asked for.
void set_training_lengths(RunConfig& config, const TrainOptions& options);

/// The parameters of all groups.
std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

}  // namespace linkboy
