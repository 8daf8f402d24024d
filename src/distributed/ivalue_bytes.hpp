#pragma once

#include <ATen/core/ivalue.h>
#include <torch/serialize.h>

#include <string>

namespace linkboy {

/// A value for other processes of this run; nothing that comes from a file.
inline std::string to_bytes(const c10::IValue& value) {
  const std::vector<char> bytes = torch::pickle_save(value);
  return {bytes.begin(), bytes.end()};
}

inline c10::IValue from_bytes(const std::string& bytes) {
  return torch::pickle_load({bytes.begin(), bytes.end()});
}

}  // namespace linkboy
