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

  /// Returns the output for the complete batch. An executor that cannot separate the passes also
  /// runs the backward pass here.
  virtual StepOutput forward(const Batch& batch, AccumulationWindow window) = 0;

  /// Runs the remaining part of the micro-step. The gradients are accumulated when it returns.
  virtual void backward(const StepOutput& output) = 0;
};

/// The passes of a micro-step, which call methods of a Trainer.
struct StepPasses {
  std::function<StepOutput(const Batch&)> forward;
  std::function<void(const StepOutput&)> backward;
};

/// Runs the passes directly.
std::unique_ptr<StepExecutor> make_eager_step(StepPasses passes);

/// Replays the passes from CUDA graphs. The graphs are recorded again if the parameters change.
/// @param parameters  Returns the trained parameters.
/// @param accumulates  Whether the gradients of several micro-steps are accumulated.
std::unique_ptr<StepExecutor> make_graphed_step(
    StepPasses passes, c10::Device device, bool accumulates,
    std::function<std::vector<at::Tensor>()> parameters);

}  // namespace linkboy
