#pragma once

#include <ATen/core/ivalue.h>
#include <torch/serialize.h>

#include <string>

#include "checkpoint/ivalue_tree.hpp"

namespace linkboy {

/// Serialises a value for other processes of this run; do not use it for files. The tensors arrive
/// on the CPU, because each process uses a different device. Only the elements of a view are sent,
/// not its complete storage.
inline std::string to_bytes(const c10::IValue& value) {
  const auto on_cpu = [](const c10::IValue& leaf, const ValuePath&) -> c10::IValue {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
    const at::Tensor tensor = leaf.toTensor().detach().cpu();
    const bool is_view = tensor.layout() == at::kStrided &&
                         tensor.storage().nbytes() > static_cast<std::size_t>(tensor.nbytes());
    return is_view ? tensor.clone() : tensor;
  };
  const std::vector<char> bytes = torch::pickle_save(map_leaves(value, on_cpu));
  return {bytes.begin(), bytes.end()};
}

inline c10::IValue from_bytes(const std::string& bytes) {
  return torch::pickle_load({bytes.begin(), bytes.end()});
}

}  // namespace linkboy
