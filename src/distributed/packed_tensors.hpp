// Messages of several tensors, for collectives with many small ones.

#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <vector>

namespace linkboy {

/// Calls `visit` with the tensors of each message. They are on one device and, if `have_one_dtype`,
/// of one dtype. Small tensors share a message, and each large one has a separate message.
void for_each_message(const std::vector<at::Tensor>& tensors, bool have_one_dtype,
                      c10::function_ref<void(const std::vector<at::Tensor>& message)> visit);

/// Returns the tensor's elements as bytes. The result shares its memory if the tensor is
/// contiguous.
at::Tensor bytes_of(const at::Tensor& tensor);

/// Returns the bytes of all tensors of the message, one after another.
at::Tensor packed(const std::vector<at::Tensor>& message);

/// Copies the bytes that `packed` returned back into the tensors of the message. Copies all tensors
/// of a dtype together.
void unpack(const at::Tensor& bytes, const std::vector<at::Tensor>& message);

}  // namespace linkboy
