// The lengths of a run, and the checks of options and the clipping that Trainer and Engine share.

#pragma once

#include "linkboy/run/options.hpp"
#include "linkboy/run/run_config.hpp"

namespace linkboy {

class Accelerator;

/// Returns the lengths and sizes of a run with these loaders; either may be null.
/// @throws Error if the training loader has no batches.
/// @note Collective if there is an evaluation loader.
RunConfig resolve_run_config(const Accelerator& accelerator, const TrainOptions& options,
                             const DataLoader* train_loader, const DataLoader* eval_loader);

/// Fills in the counts that follow from the number of batches per process, the accumulation, the
/// number of processes and the requested length.
void set_training_lengths(RunConfig& config, const TrainOptions& options);

/// Returns the largest value of all processes.
/// @note Collective.
int64_t max_over_ranks(const Accelerator& accelerator, int64_t value);

/// Clips the gradients of all parameters of the optimizer according to the configuration.
/// @return Their 2-norm before clipping; undefined without `gradient_clip_norm`.
/// @note Collective if `zero_stage` is 2 and `gradient_clip_norm` is set.
at::Tensor clip_gradients(Accelerator& accelerator, torch::optim::Optimizer& optimizer,
                          const RunConfig& config);

/// Returns the parameters of all param groups.
std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

/// Whether the step of `optimizer` evaluates a closure.
bool needs_closure(const torch::optim::Optimizer& optimizer);

/// Checks an option that must be at least 1.
/// @throws OptionError if `value` is less than 1.
void check_at_least_one(const char* name, int64_t value);
/// Checks an optional clip value.
/// @throws OptionError if `value` is given but not positive.
void check_clip_value(const char* name, const std::optional<double>& value);

}  // namespace linkboy
