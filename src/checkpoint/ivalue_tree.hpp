#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <vector>

namespace linkboy {

/// Maximum number of nested containers in a checkpoint, for both writing and reading.
constexpr int kMaxTreeDepth = 128;

/// The path from the root of a tree of values to one of them: keys of dicts, and "[index]" in lists
/// and tuples.
using ValuePath = std::vector<std::string>;

/// Returns the value's name for errors: "\"model.layers[3]\"".
std::string quote_path(const ValuePath& path);

/// A function that returns the new value of a leaf: a value that is not a list, tuple or dict.
using MapLeaf = std::function<c10::IValue(const c10::IValue& leaf, const ValuePath& path)>;

/// Rebuilds lists, tuples and dicts, without element types, and replaces each leaf by the result of
/// `map`.
/// @throws Error if they are nested deeper than kMaxTreeDepth, or if a key is not a string, number
///         or bool.
c10::IValue map_leaves(const c10::IValue& value, const MapLeaf& map);

}  // namespace linkboy
