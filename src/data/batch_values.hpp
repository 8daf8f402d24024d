#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

#include <vector>

#include "linkboy/data/batch.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Applies `map` to each tensor in a batch's value, including those in its lists, tuples and dicts
/// at any depth. If `map` returns all tensors unchanged, returns the value itself, not a copy.
/// Undefined tensors and objects of TorchScript classes are unchanged.
LINKBOY_API c10::IValue map_tensors(const c10::IValue& value,
                                    c10::function_ref<at::Tensor(const at::Tensor&)> map);

/// Applies `map` to each tensor of a batch and of its values.
LINKBOY_API Batch map_tensors(const Batch& batch,
                              c10::function_ref<at::Tensor(const at::Tensor&)> map);

/// Whether the elements of the tensor are consecutive in host memory, so that memcpy can copy them
/// on the calling thread. LibTorch's copies would start several threads in each worker of a loader.
bool is_plain(const at::Tensor& tensor);

/// Returns a list of the samples' values. If they are all strings, integers, floating-point
/// numbers, bools or tensors, the list is typed, so that `toTensorVector` and similar functions can
/// read it.
c10::IValue typed_list_of(const std::vector<c10::IValue>& values);

}  // namespace linkboy
