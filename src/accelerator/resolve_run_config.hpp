#pragma once

#include "linkboy/run/options.hpp"
#include "linkboy/run/run_config.hpp"

namespace linkboy {

class Accelerator;

/// The lengths and sizes of a run with these loaders; either may be null.
/// @throws Error if the training loader has no batch. @note Collective, with an evaluation loader.
RunConfig resolve_run_config(const Accelerator& accelerator, const TrainOptions& options,
                             const DataLoader* train_loader, const DataLoader* eval_loader);

/// Fills in the counts that follow from the batches of one process, the accumulation, the number of
/// processes and the length that was asked for.
void set_training_lengths(RunConfig& config, const TrainOptions& options);

/// Clips the gradients of all of the optimizer's parameters as the configuration says.
/// @return Their 2-norm before, undefined without `gradient_clip_norm`.
/// @note Collective, with `zero_stage` 2.
at::Tensor clip_gradients(Accelerator& accelerator, torch::optim::Optimizer& optimizer,
                          const RunConfig& config);

/// The parameters of all groups.
std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

/// Whether its step evaluates a closure.
bool needs_closure(const torch::optim::Optimizer& optimizer);

/// @throws OptionError if `value` is less than 1.
void check_at_least_one(const char* name, int64_t value);
/// @throws OptionError if `value` is given and not positive.
void check_clip_value(const char* name, const std::optional<double>& value);

}  // namespace linkboy
