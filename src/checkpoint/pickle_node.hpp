#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <vector>

#include "pickle_format.hpp"

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

  // Used by the conversion, which stores its result in `plain`:
  std::size_t num_values = 0;     // with itself and all repetitions; 0 before the conversion
  std::size_t num_key_bytes = 0;  // the sizes of all keys of dicts, likewise
  int height = 0;                 // number of container levels below this node
};

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
