#pragma once

#include <string_view>

#include "linkboy/checkpoint/name_options.hpp"
#include "linkboy/checkpoint/state_dict.hpp"

namespace torch::nn {
class Module;
}

namespace linkboy {

/// Parameters and buffers of a module, in the order and with the names of Python's `state_dict`.
NamedTensors named_tensors_of(const torch::nn::Module& module);

/// Copies the tensors of `source` into those of `destination` by name, in place, converting dtype
/// and device. All or nothing: every name and shape is checked before the first byte is written.
/// `what` names the source in the error.
///
/// @param strict  False leaves out names that only one side has; returns them.
/// @throws Error that lists the missing, the unexpected (if strict) and the misshapen names, or if
///         no name is on both sides.
LoadReport copy_named_tensors(const NamedTensors& destination, const StateDict& source,
                              std::string_view what, bool strict = true);

/// Only checks. @throws Error as copy_named_tensors.
void check_named_tensors(const NamedTensors& destination, const StateDict& source,
                         std::string_view what);

}  // namespace linkboy
