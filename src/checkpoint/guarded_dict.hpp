#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

#include <utility>
#include <vector>

namespace linkboy {

/// Builds a dict in time and memory linear in its entries, whatever its keys are. Of a key that
/// comes twice the last value counts. Every dict with keys from a file must be built by it.
///
/// c10::Dict doubles its table until no key lies log2(slots) places behind the one that its hash
/// names. Its hashes have no secret, so a stranger could make a few keys double it without end.
///
/// @param entries  Their keys are strings, numbers or bools.
/// @throws Error if the keys were chosen to collide.
c10::impl::GenericDict make_guarded_dict(
    const std::vector<std::pair<c10::IValue, c10::IValue>>& entries);

}  // namespace linkboy
