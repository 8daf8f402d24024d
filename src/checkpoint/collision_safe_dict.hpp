#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

#include <utility>
#include <vector>

namespace linkboy {

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
