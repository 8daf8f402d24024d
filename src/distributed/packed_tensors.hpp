#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <vector>

namespace linkboy {

/// Calls `visit` with tensors of one device, and of one dtype if so wanted, that make one message:
/// small ones together, each large one by itself.
void for_each_message(const std::vector<at::Tensor>& tensors, bool have_one_dtype,
                      c10::function_ref<void(const std::vector<at::Tensor>& message)> visit);

/// Returns the tensor's elements as bytes; shares its memory if it is contiguous.
at::Tensor bytes_of(const at::Tensor& tensor);

/// Returns the bytes of all tensors of the message, one after the other.
at::Tensor packed(const std::vector<at::Tensor>& message);

/// Copies what `packed` has made of the message back, all tensors of a dtype together.
void unpack(const at::Tensor& bytes, const std::vector<at::Tensor>& message);

}  // namespace linkboy
