#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <vector>

#include "linkboy/data/batch.hpp"
#include "linkboy/run/step_output.hpp"
#include "precision/graphed_step.hpp"

namespace linkboy {

/// Runs the forward and the backward pass of a micro-step.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  /// Called before the first micro-step of each epoch.
  virtual void begin_epoch() {}

  /// Returns the output of the whole batch. An executor that does not separate the passes has run
  /// the backward pass, too.
  virtual StepOutput forward(const Batch& batch, AccumulationWindow window) = 0;

  /// Runs what is left of the step. Its gradients are added up afterwards.
  virtual void backward(const StepOutput& output) = 0;
};

/// What a step is made of: the methods of a Trainer.
struct StepPasses {
  std::function<StepOutput(const Batch&)> forward;
  std::function<void(const StepOutput&)> backward;
};

/// Runs the passes as they are.
std::unique_ptr<StepExecutor> make_eager_step(StepPasses passes);

/// Replays the passes from CUDA graphs, which are recorded again when the parameters change.
/// @param parameters  Returns those that are trained.
/// @param accumulates  Whether gradients of several micro-steps are added up.
std::unique_ptr<StepExecutor> make_graphed_step(
    StepPasses passes, c10::Device device, bool accumulates,
    std::function<std::vector<at::Tensor>()> parameters);

}  // namespace linkboy
