#pragma once

#include <utility>

#include "data/batch_values.hpp"
#include "linkboy/run/step_output.hpp"

namespace linkboy {

/// Applies `map` to each tensor of an output: its loss, the model's outputs and the extras.
inline StepOutput map_tensors(StepOutput output,
                              c10::function_ref<at::Tensor(const at::Tensor&)> map) {
  if (output.loss.defined()) output.loss = map(output.loss);
  output.model_outputs = map_tensors(output.model_outputs, map);
  const StateDict extras = std::exchange(output.extras, {});
  for (const auto& [name, value] : extras.entries()) {
    output.extras.set(name, map_tensors(value, map));
  }
  return output;
}

}  // namespace linkboy
