#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

#include "linkboy/checkpoint/state_dict.hpp"

namespace linkboy {

/// What a forward pass over one micro-batch gave; callbacks see it.
struct StepOutput {
  /// Scalar; the mean over the micro-batch's samples, not divided by the accumulation steps.
  /// Required.
  at::Tensor loss{};

  /// What the model returned: a tensor, or a tuple, list or dict of tensors.
  c10::IValue model_outputs{};

  /// The number of samples (or tokens) that `loss` is the mean of: its weight in the epoch's mean.
  /// Required; the Trainer refuses a step that leaves it 0.
  int64_t batch_size = 0;

  /// Anything else that callbacks should see.
  StateDict extras{};
};

}  // namespace linkboy
