#pragma once

#include <ATen/core/Tensor.h>

#include "linkboy/data/batch.hpp"
#include "linkboy/run/accumulation_window.hpp"
#include "linkboy/run/step_output.hpp"

namespace linkboy {

/// Runs the forward and the backward pass of a micro-step in another way than one after the other:
/// replayed from a graph, compiled, or in parts of the batch.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  /// Called before the first micro-step of each epoch.
  virtual void begin_epoch() = 0;

  /// Runs both passes on a batch and returns the output. The gradients are accumulated when it
  /// returns.
  virtual StepOutput forward(const Batch& batch, AccumulationWindow window) = 0;
};

}  // namespace linkboy
