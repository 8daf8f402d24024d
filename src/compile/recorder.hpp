#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace linkboy {

/// A tensor that a program reads.
struct ProgramInput {
  /// "batch" for the tensors of the batch; "state" for those of modules and optimizers.
  const char* kind;
  std::string name;
  at::Tensor tensor;
};

/// All of an input's memory that a recorded function has changed, with copies of it before and
/// after.
struct WrittenTensor {
  at::Tensor tensor;
  at::Tensor before;
  at::Tensor after;
};

/// The ATen calls of a function below autograd, as JSON for compile.py:
///
///     inputs   {"id": 0, "kind": "state", "name", "dtype", "device", "shape", "strides"}
///     calls    {"operator": "aten::mm", "overload": "", "arguments": [...], "results": [3]}
///     outputs  [3, 7]
struct Recording {
  nlohmann::json inputs = nlohmann::json::array();
  nlohmann::json calls = nlohmann::json::array();
  nlohmann::json outputs = nlohmann::json::array();
  /// What a replay repeats of the function's results besides tensors.
  nlohmann::json constants{};

  /// The tensors of `inputs`: those that were given, and then those that the function has found
  /// elsewhere.
  std::vector<at::Tensor> input_tensors{};
  /// What the function has returned.
  std::vector<at::Tensor> output_tensors{};
  std::vector<WrittenTensor> written{};
  /// The state of the CPU's default random number generator after the function.
  at::Tensor generator_after{};
  /// Why the calls must not be compiled; empty if they may be.
  std::vector<std::string> problems{};
};

/// Runs `function` and records the ATen calls that it makes on this thread, including those of
/// backward passes. Afterwards the memory of the inputs and the default random number generator of
/// the CPU are as before.
/// @param function  Returns the outputs.
/// @throws Error if `function` itself records another one, and what it throws.
Recording record(const std::vector<ProgramInput>& inputs,
                 c10::function_ref<std::vector<at::Tensor>()> function);

}  // namespace linkboy
