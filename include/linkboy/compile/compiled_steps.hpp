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
    /// Continues eagerly, after one warning for each cause.
    eager,
    /// Throws an Error from the micro-step.
    error,
  };
  /// What to do if a step cannot be compiled, or if its compiled form computes something else:
  /// `eager` continues eagerly, after a warning; `error` throws an Error.
  OnFailure on_failure = OnFailure::eager;

  /// The folder of the compiled packages, in which only this user may write. If it is empty,
  /// `linkboy/compiled` in XDG_CACHE_HOME or `~/.cache`.
  std::filesystem::path cache{};

  /// Largest difference of the loss, of a gradient or of a buffer in the check of a package,
  /// relative to its norm; at least 0. For gradients, 1e-3 of the norm of all of them is added to
  /// their norm (0.05 in bf16), because some are only rounding errors. If it is 0, it is 1e-3 for
  /// steps in fp32 or fp64, and 0.05 for others.
  double tolerance = 0.0;

  /// Whether steps run eagerly until a package is ready, while another thread waits for the
  /// compiler. If the run ends before that, the package is lost. A run that resumes is then not
  /// bit-identical to a whole one.
  bool in_background = false;

  LINKBOY_FIELDS(on_failure, cache, tolerance, in_background);
};
LINKBOY_ENUM_NAMES(CompileOptions::OnFailure, eager, error)

/// Returns the function that compiles the steps of a run: `TrainOptions::create_step_executor_fn`.
/// They are compiled if `TrainOptions::execution_mode` is `ExecutionMode::compiled`.
///
/// The first micro-step records the ATen calls of the forward pass and of the gradients, with the
/// batch itself and with batches of other sizes, and compiles them with LibTorch's compiler,
/// TorchInductor, which takes 20 to 60 seconds. This needs a C++ compiler and the Python with which
/// LibTorch was installed (or LINKBOY_PYTHON). The package is kept in a cache; with it, neither is
/// needed. Its results are compared with those of the recorded step before they are used.
///
/// The recordings call `calculate_train_batch_loss` several times, and undo what it did to the
/// memory of tensors and to the random numbers. Afterwards it is called only to record again: in
/// the second micro-step, in the first one of each epoch, and when a batch has a new size. If the
/// step then makes other calls, or with other numbers, the run continues eagerly. In all other
/// micro-steps, what it does besides ATen calls is frozen: a number that depends on `num_updates`
/// keeps its value. Values that it reads or writes through pointers are not seen, apart from small
/// tensors.
///
/// Batches that do not fit the package run eagerly. A step is compiled separately for other trained
/// tensors, other modes of modules, and evaluations.
///
/// A next run of the same Trainer with the same function (or a copy) takes the compiled steps over
/// if it does the same work. The function keeps them, and with them the tensors of the model, until
/// its last copy is destroyed or a run of another Trainer ends.
LINKBOY_API CreateStepExecutorFn compiled_steps(CompileOptions options = {});

}  // namespace linkboy
