// The tensors of a module, by the names that Python's `state_dict` gives them.

#pragma once

#include <string_view>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/checkpoint/tensor_renaming.hpp"

namespace torch::nn {
class Module;
}

namespace linkboy {

/// Returns the parameters and buffers of a module, in the order and with the names of Python's
/// `state_dict`.
NamedTensors named_tensors_of(const torch::nn::Module& module);

/// Copies the tensors of `source` into those of `destination` by name, in place, and converts dtype
/// and device. Copies everything or nothing: all names and shapes are checked before the first byte
/// is written. `what` describes the source in errors.
///
/// @param strict  If false, ignores names that only one side has, and returns them.
/// @throws Error that lists the missing and the unexpected names (if strict) and the tensors of
///         another shape, or if no name is on both sides.
LoadReport copy_named_tensors(const NamedTensors& destination, const StateDict& source,
                              std::string_view what, bool strict = true);

/// Checks the names and shapes without copying anything.
/// @throws The same errors as copy_named_tensors.
void check_named_tensors(const NamedTensors& destination, const StateDict& source,
                         std::string_view what);

}  // namespace linkboy
