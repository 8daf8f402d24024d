#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"

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

/// Copies all tensors, lists, tuples and dicts.
StateDict deep_copy(const StateDict& state);

/// Returns a list without an element type.
template <class Items>
c10::impl::GenericList list_of(const Items& items) {
  c10::impl::GenericList list(c10::AnyType::get());
  list.reserve(items.size());
  for (const auto& item : items) list.push_back(item);
  return list;
}

/// Builds a dict from n entries in O(n log n) time and O(n) memory, regardless of its keys. If a
/// key occurs twice, the last value is used. Every dict whose keys come from a file must be built
/// with this function.
///
/// c10::Dict doubles its table until every key lies less than log2(slots) places after the place
/// that its hash determines. The hash does not use a secret, so an attacker could choose a few keys
/// that make the table grow without limit.
///
/// @param entries  Their keys must be strings, numbers or bools.
/// @throws Error if the keys were chosen to collide.
c10::impl::GenericDict make_guarded_dict(
    const std::vector<std::pair<c10::IValue, c10::IValue>>& entries);

}  // namespace linkboy
