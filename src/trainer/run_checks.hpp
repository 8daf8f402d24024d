// The checks of a run, and the warnings at its start.

#pragma once

#include <string>
#include <vector>

#include "linkboy/run/options.hpp"
#include "trainer/run_state.hpp"
#include "trainer/trained_modules.hpp"
#include "trainer/trained_optimizers.hpp"

namespace linkboy {

class GradScaler;
class Trainer;

/// @throws OptionError if an option is out of range, or if a required option or the optimizer is
///         missing.
void check_train_options(const TrainOptions& options, const torch::optim::Optimizer* optimizer);
void check_evaluate_options(const EvaluateOptions& options);
/// @throws OptionError if `accelerator` does not support the options.
void check_accelerator_options(const Accelerator& accelerator, const TrainOptions& options);
/// Checks everything that is known before a run begins.
/// @throws OptionError as above; Error if the optimizer does not train the modules.
void check_run(const TrainOptions& options, const TrainedModules& modules,
               const TrainedOptimizers& optimizers);
/// A closure runs the passes of an accumulation window several times, and the optimizer compares
/// the losses that it returns.
/// @throws OptionError if an option does not work with an optimizer that needs a closure.
void check_closure(const TrainOptions& options, const TrainedOptimizers& optimizers,
                   const Accelerator& accelerator);

/// If ranks made different numbers of steps or collective calls, they would wait for each other
/// forever. Therefore this check comes before the first call that depends on any of these values.
/// @throws DistributedError on all ranks if they differ.
/// @note Collective.
void check_same_on_all_ranks(const TrainOptions& options, const TrainedOptimizers& optimizers,
                             const std::vector<std::string>& lines_of_trainer,
                             const Accelerator& accelerator);
/// Compares the loaders that overridden methods and callbacks created from the options.
/// @throws DistributedError on all ranks if they differ.
/// @note Collective.
void check_same_loaders_on_all_ranks(const RunData& data,
                                     const std::vector<std::string>& lines_of_trainer,
                                     const Accelerator& accelerator);

/// @throws Error if all parameters are frozen.
void check_trainable_parameters(const TrainedOptimizers& optimizers);
/// An update without gradients would change nothing but the momentum of earlier ones.
/// @throws Error if no parameter has a gradient.
void check_gradients(const TrainedOptimizers& optimizers, const Accelerator& accelerator);
/// @param scaler  Null unless the precision is fp16.
/// @throws Error if the epoch made no update, or none that was not skipped and none can succeed.
void check_updates_were_made(const RunProgress& progress, const GradScaler* scaler);

/// Warns of parameters that checkpoints do not contain.
void warn_of_unsaved_parameters(Trainer& trainer, const TrainedModules& modules,
                                const TrainedOptimizers& optimizers);
/// Warns of optimizers whose steps do not change the weights, unless a callback sets the rates.
void warn_of_zero_rates(Trainer& trainer, const TrainedOptimizers& optimizers);

}  // namespace linkboy
