#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace linkboy {

class ByteReader;

/// A storage to which a pickle refers. Its numbers are not checked.
struct StorageId {
  /// A part of the storage `key`, which has a key of its own. Offset and size are in elements.
  struct View {
    std::string key;
    int64_t offset;
    int64_t num_elements;
  };

  std::string key;
  int64_t num_elements;
  std::size_t element_size;
  std::optional<View> view{};  // only in files of PyTorch before 1.6
};

/// A function that returns a storage on the CPU. It is called once per key.
using StorageLoader = std::function<c10::Storage(const StorageId& id)>;

/// Rebuilds the value that the `data.pkl` of a checkpoint describes: None, bools, 64-bit integers,
/// doubles, strings, tensors, and lists, tuples and dicts of these. Other types of data become one
/// of these: subclasses of dict a dict, a set a list, bytes a uint8 tensor, a complex number a
/// tensor without dimensions, a storage a tensor, and a device, dtype or layout the string that
/// Python prints. Tensors do not require a gradient; those that share a storage in the file also
/// share it in the result.
///
/// Safe for files from untrusted sources: it supports only data, and checks every length, index,
/// size and stride before use. A pickle of n bytes needs O(n log n) steps and at most 1024 n bytes
/// of memory, regardless of its contents. A walk through the result, which visits shared containers
/// at each occurrence, visits at most 4 n + 65536 values, and keys of at most 32 bytes for each of
/// these.
///
/// @throws Error if `pickle` is damaged, too deeply nested, or refers to anything that is not data.
c10::IValue unpickle(std::string_view pickle, const StorageLoader& load_storage);

/// Reads the next pickle of `bytes`.
c10::IValue unpickle(ByteReader& bytes, const StorageLoader& load_storage);

}  // namespace linkboy
