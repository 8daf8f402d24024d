#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

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

  /// Returns a text that differs if the step may do other work than before: which modules are in
  /// training mode.
  std::function<std::string()> mode{};

  /// Where the step runs.
  c10::Device device = c10::kCPU;

  /// Prints a message as `Trainer::log` does.
  std::function<void(LogLevel, std::string_view)> log{};
};

/// Runs the forward passes of micro-steps or of evaluations in another way than eagerly. Each run
/// has its own. Not thread-safe.
class LINKBOY_API StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  /// Called before the first micro-step of each epoch: parameters, and which of them are trained,
  /// change only there.
  virtual void begin_epoch() = 0;

  /// Executes the step on a batch and returns its output. In training, if the loss does not require
  /// a gradient, the executor has also made the backward pass, and the gradients are accumulated.
  virtual StepOutput run(const Batch& batch, AccumulationWindow window) = 0;
};

/// Creates the executor of a run; never returns null.
using CreateStepExecutorFn = std::function<std::unique_ptr<StepExecutor>(StepWork work)>;

}  // namespace linkboy
