#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

#include "linkboy/checkpoint/state_dict.hpp"

namespace linkboy {

/// Result of the forward pass of one batch. Callbacks receive it.
struct StepOutput {
  /// The loss, a scalar: the mean over the batch's samples, not divided by the accumulation steps.
  /// Required.
  at::Tensor loss{};

  /// Output of the model: a tensor, or a tuple, list or dict of tensors.
  c10::IValue model_outputs{};

  /// Number of samples (or tokens) over which `loss` is averaged; its weight in the epoch's mean.
  /// Required; at least 1.
  int64_t batch_size = 0;

  /// Further values for callbacks.
  StateDict extras{};
};

}  // namespace linkboy
