#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// A call of an operation that is typical of a layer.
struct LayerCall {
  /// Index of the first parameter that the call received, in the list of parameters. Not set if it
  /// did not receive any.
  std::optional<std::size_t> parameter{};
  /// Shape of the first output.
  std::vector<int64_t> output_shape{};
  /// Number of floating-point operations. Not set if linkboy cannot compute it.
  std::optional<int64_t> flops{};
};

/// Runs `work` and returns its calls of layer operations on this thread, in order: linear layers,
/// convolutions, matrix products, attention, recurrent layers, normalisations and embeddings. An
/// operation that consists of others counts as one call. Calls from TorchScript are included.
///
/// Each multiply-add of a product counts as two FLOPs (biases do not count), and each output
/// element of a batch normalisation as two. An embedding counts as 0 FLOPs.
///
/// @param parameters  Identified by their memory: a view of a parameter counts as that parameter.
/// @throws Any error from `work`.
[[nodiscard]] LINKBOY_API std::vector<LayerCall> record_layer_calls(
    const std::function<void()>& work, const NamedTensors& parameters);

}  // namespace linkboy
