#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <string>
#include <vector>

namespace linkboy {

/// Levels of containers that a checkpoint may have: what can be written can be read.
constexpr int kMaxTreeDepth = 128;

/// From the root of a tree of values down to one of them: keys, and "[index]" in lists and tuples.
using ValuePath = std::vector<std::string>;

/// The value's name in errors: "\"model.layers[3]\"".
std::string quote_path(const ValuePath& path);

/// What a value that is no list, tuple or dict becomes.
using MapLeaf = std::function<c10::IValue(const c10::IValue& leaf, const ValuePath& path)>;

/// Rebuilds lists, tuples and dicts, without element types, around leaves that `map` makes.
/// @throws Error if they are nested deeper than kMaxTreeDepth, or a key is neither
///         string, number nor bool.
c10::IValue map_leaves(const c10::IValue& value, const MapLeaf& map);

}  // namespace linkboy
