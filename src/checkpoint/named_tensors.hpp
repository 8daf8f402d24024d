#pragma once

#include <string_view>

#include "linkboy/state_dict.hpp"

namespace linkboy {

/// Copies the tensors of `source` into those of `destination` by name, in place, converting dtype
/// and device. All or nothing: every name and shape is checked before the first byte is written.
/// `what` names the source in the error.
///
/// @throws Error that lists the missing, the unexpected and the misshapen names.
void copy_named_tensors(const NamedTensors& destination, const StateDict& source,
                        std::string_view what);

/// Only checks. @throws Error as copy_named_tensors.
void check_named_tensors(const NamedTensors& destination, const StateDict& source,
                         std::string_view what);

}  // namespace linkboy
