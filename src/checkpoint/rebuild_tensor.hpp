#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace linkboy {

inline constexpr std::size_t kMaxDimensions = 64;

/// Returns a storage of bytes on the CPU. By default, it has a size but no memory.
inline c10::Storage storage_of(std::size_t num_bytes, at::DataPtr data = {nullptr, at::kCPU}) {
  return {c10::Storage::use_byte_size_t(), num_bytes, std::move(data), nullptr, false};
}

/// Returns a tensor with these `sizes` and `strides` that begins at `offset` (in elements) in
/// `storage`, without copying.
///
/// @throws Error unless all of its elements lie within the bytes of `storage`.
at::Tensor rebuild_tensor(const c10::Storage& storage, c10::ScalarType dtype, int64_t offset,
                          const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);

}  // namespace linkboy
