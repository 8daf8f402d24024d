// The Python functions that a pickle may call, and the checks of their arguments.

#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>
#include <vector>

#include "pickle_node.hpp"
#include "unpickler.hpp"

namespace linkboy {

/// Whether a node is a string.
bool is_text(const PickleNode& node);

/// Whether a node is a list or a tuple.
bool is_sequence(const PickleNode& node);

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

}  // namespace linkboy
