#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <functional>
#include <string>
#include <string_view>

namespace linkboy {

/// A function that returns the bytes, on the CPU, of the storage that a pickle calls `key`. It is
/// called once per key.
using StorageLoader = std::function<c10::Storage(const std::string& key)>;

/// Rebuilds the value that the `data.pkl` of a checkpoint describes: None, bools, 64-bit integers,
/// doubles, strings, tensors, and lists, tuples and dicts of these (an `OrderedDict` becomes a
/// dict, a `torch.Size` a tuple). Tensors do not require a gradient; those that share a storage in
/// the file also share it in the result.
///
/// Safe for files from untrusted sources: it supports only data, and checks every length, index,
/// size and stride before use. A pickle of n bytes needs O(n log n) steps and at most 1024 n bytes
/// of memory, regardless of its contents. A walk through the result, which visits shared containers
/// at each occurrence, visits at most 4 n + 65536 values.
///
/// @throws Error if `pickle` is damaged, too deeply nested, or refers to anything that is not data.
c10::IValue unpickle(std::string_view pickle, const StorageLoader& load_storage);

}  // namespace linkboy
