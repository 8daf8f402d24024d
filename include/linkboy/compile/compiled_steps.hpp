#pragma once

#include <filesystem>

#include "linkboy/export.hpp"
#include "linkboy/run/step_executor.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Options of `compiled_steps`.
struct CompileOptions {
  /// See `on_failure`.
  enum class OnFailure {
    /// Continues eagerly, after one warning.
    eager,
    /// Throws an Error from the micro-step.
    error,
  };
  /// What to do if a step cannot be compiled, or if its compiled form computes something else:
  /// `eager` continues eagerly, after one warning; `error` throws an Error.
  OnFailure on_failure = OnFailure::eager;

  /// The folder of the compiled packages, in which only this user may write. If it is empty,
  /// `linkboy/compiled` in XDG_CACHE_HOME or `~/.cache`.
  std::filesystem::path cache{};

  /// Largest difference of a loss or of a gradient in the check of a package, relative to its norm;
  /// at least 0. If it is 0, it is 1e-3 for steps in fp32 or fp64, and 0.05 for others.
  double tolerance = 0.0;

  LINKBOY_FIELDS(on_failure, cache, tolerance);
};
LINKBOY_ENUM_NAMES(CompileOptions::OnFailure, eager, error)

/// Returns the function that compiles the steps of a run: `TrainOptions::create_step_executor_fn`.
/// They are compiled if `TrainOptions::execution_mode` is `ExecutionMode::compiled`.
///
/// The first micro-step records the ATen calls of the forward and the backward pass, with the batch
/// itself and with parts of it, and compiles them with LibTorch's compiler, TorchInductor, which
/// takes about a minute. This needs a C++ compiler and the Python with which LibTorch was installed
/// (or LINKBOY_PYTHON). The package is kept in a cache; with it, neither is needed. Its results are
/// compared with those of the recorded step before they are used.
///
/// The recordings run `calculate_train_batch_loss` and `backward_step` several times, and undo what
/// they did to tensors and to the random numbers. Afterwards, neither is called, so what they do
/// besides ATen calls is frozen: a loss weight that depends on the epoch keeps its value. A second
/// recording, in the next micro-step, finds values that differ between steps, and the step then
/// runs eagerly. Batches that do not fit the package also run eagerly.
LINKBOY_API CreateStepExecutorFn compiled_steps(CompileOptions options = {});

}  // namespace linkboy
