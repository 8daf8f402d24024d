#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <string>
#include <vector>

namespace linkboy {

/// The `data.pkl` of a checkpoint, and the storages to which it refers by their numbers.
struct Pickled {
  std::string bytes{};
  std::vector<c10::Storage> storages{};
};

/// Pickles a value like Python's `torch.save`: None, bools, integers, doubles, strings, tensors on
/// the CPU, and lists, tuples and dicts of these. Unlike LibTorch's pickler, it writes every dtype
/// that Python reads.
/// @throws Error if a string has 4 GiB or more.
Pickled pickle(const c10::IValue& value);

}  // namespace linkboy
