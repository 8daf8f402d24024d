#pragma once

#include "linkboy/run/options.hpp"
#include "linkboy/run/run_config.hpp"

namespace linkboy {

class Accelerator;

/// Returns the lengths and sizes of a run with these loaders; either may be null.
/// @throws Error if the training loader has no batches.
/// @note Collective if there is an evaluation loader.
RunConfig resolve_run_config(const Accelerator& accelerator, const TrainOptions& options,
                             const DataLoader* train_dataloader, const DataLoader* eval_dataloader);

/// Fills in the counts that follow from the number of batches per process, the accumulation, the
/// number of processes and the requested length.
void set_training_lengths(RunConfig& config, const TrainOptions& options);

}  // namespace linkboy
