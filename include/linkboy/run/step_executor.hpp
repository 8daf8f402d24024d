#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/data/batch.hpp"
#include "linkboy/export.hpp"
#include "linkboy/run/accumulation_window.hpp"
#include "linkboy/run/logger.hpp"
#include "linkboy/run/step_output.hpp"

namespace linkboy {

/// What a StepExecutor executes: the forward pass of a micro-step, and the tensors that it reads.
/// All of it is valid as long as the run.
struct StepWork {
  /// Runs the forward pass of a batch eagerly and returns its output.
  std::function<StepOutput(const Batch&)> run{};

  /// Whether a backward pass of the loss follows.
  bool is_training = true;

  /// Returns the parameters and buffers of the Trainer's modules and optimizers, with their names.
  std::function<NamedTensors()> tensors{};

  /// Returns a number that differs if the step may do other work than before, because other modules
  /// are in training mode.
  std::function<std::size_t()> mode{};

  /// Returns the number of samples of all batches but the last of an epoch; 0 if it is not known.
  std::function<int64_t()> batch_size{};

  /// Whether the run is about to stop, so that no long work should begin.
  std::function<bool()> is_stop_requested{};

  /// Prints a message as `Trainer::log` does.
  std::function<void(LogLevel, std::string_view)> log{};
};

/// Runs the forward passes of micro-steps or of evaluations in another way than eagerly. Each run
/// has its own. Not thread-safe.
class LINKBOY_API StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  /// Called before the first micro-step of each epoch, and before each evaluation: other tensors
  /// take the place of parameters and buffers only there.
  virtual void begin_epoch() = 0;

  /// Executes the step on a batch and returns its output.
  virtual StepOutput run(const Batch& batch, AccumulationWindow window) = 0;

  /// Whether `run` in training also makes the backward pass, and accumulates the gradients.
  /// Otherwise the Trainer calls `backward_step` with the loss.
  virtual bool makes_backward_pass() const = 0;
};

/// Creates the executor of a run; never returns null.
using CreateStepExecutorFn = std::function<std::unique_ptr<StepExecutor>(StepWork work)>;

}  // namespace linkboy
