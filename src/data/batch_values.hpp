#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

#include <vector>

namespace linkboy {

/// A batch's value with `map` of each tensor in its lists, tuples and dicts, at any depth. The
/// value itself, not a copy, if `map` returned all tensors as they were. Undefined tensors and
/// objects of TorchScript classes stay as they are.
c10::IValue map_tensors(const c10::IValue& value,
                        c10::function_ref<at::Tensor(const at::Tensor&)> map);

/// A list of the samples' values: typed if they are all strings, integers, floating-point numbers,
/// bools or tensors, so that `toTensorVector` and the like can read it.
c10::IValue list_of(const std::vector<c10::IValue>& values);

}  // namespace linkboy
