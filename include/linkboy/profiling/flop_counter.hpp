#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// A call of an operation that layers are made of.
struct LayerCall {
  /// Place among the parameters of the one that it got; nothing if it got none of them.
  std::optional<std::size_t> parameter{};
  /// Shape of its first output.
  std::vector<int64_t> output_shape{};
  /// Nothing if linkboy does not know how many they are.
  std::optional<int64_t> flops{};
};

/// Runs `work` and gives the calls that it makes on this thread, in order: linear layers,
/// convolutions, matrix products, attention, recurrent layers, normalisations and embeddings. An
/// operation that is made of others counts as one call. TorchScript is seen as well.
///
/// FLOPs are two for each multiply-add of a product (biases do not count), two for each element
/// that a batch normalisation gives out, none for an embedding.
///
/// @param parameters  Known by their memory: a view of one is that parameter.
/// @throws whatever `work` throws.
LINKBOY_API std::vector<LayerCall> record_layer_calls(const std::function<void()>& work,
                                                      const NamedTensors& parameters);

}  // namespace linkboy
