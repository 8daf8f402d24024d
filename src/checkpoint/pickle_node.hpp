// The values of a pickle under construction, and what the Python functions that it may call return.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "pickle_format.hpp"
#include "unpickler.hpp"

namespace linkboy {

/// A value under construction. Nodes can point to each other freely, even in cycles. The Unpickler
/// owns them. Only the conversion at the end must limit how far it follows pointers.
struct PickleNode {
  enum class Kind { kPlain, kTuple, kList, kDict, kGlobal, kStorage };

  Kind kind = Kind::kPlain;
  c10::IValue plain;               // kPlain: None, bool, integer, double, string or tensor.
  std::vector<PickleNode*> items;  // kDict: key, value, key, value.
  GlobalEntry global{};            // kGlobal; kStorage: its dtype.
  c10::Storage storage;            // kStorage.

  bool is_text() const { return kind == Kind::kPlain && plain.isString(); }
  bool is_sequence() const { return kind == Kind::kTuple || kind == Kind::kList; }

  // Used by the conversion, which stores its result in `plain`:
  std::size_t num_values = 0;     // with itself and all repetitions; 0 before the conversion
  std::size_t num_key_bytes = 0;  // the sizes of all keys of dicts, likewise
  int height = 0;                 // number of container levels below this node
};

/// Returns the storage that a persistent id describes.
/// @throws Error if the id has another form.
StorageId storage_of_id(const PickleNode& id);

/// Returns a copy of bytes as a one-dimensional uint8 tensor.
at::Tensor tensor_of_bytes(std::string_view bytes);

/// Returns the value that a Python function or class, which is not a container, returns for
/// `arguments`. Does not call Python.
/// @throws Error if the function does not accept such arguments, or if it is not in the list of
///         such functions.
c10::IValue value_of_call(const GlobalEntry& function, const std::vector<PickleNode*>& arguments);

/// Converts a finished node to a value, which it also stores in the node.
///
/// @param max_values  Maximum number of values in the result. Containers that are shared in the
///        pickle are also shared in memory, but a walk through the result visits them at each
///        occurrence. Without a limit, a few containers that contain each other many times would
///        make the walk endless. The keys that it visits have at most 32 bytes for each of these
///        values.
/// @throws Error if the result has more values or longer keys than that, is nested too deeply or in
///         itself, or is not data.
c10::IValue to_ivalue(PickleNode& node, std::size_t max_values);

}  // namespace linkboy
