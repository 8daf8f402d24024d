// Makes a tensor from a storage, after a check that all of its elements lie within the storage.

#include "rebuild_tensor.hpp"

#include <torch/types.h>

#include <algorithm>
#include <limits>

#include "linkboy/error.hpp"

namespace linkboy {
at::Tensor rebuild_tensor(const c10::Storage& storage, c10::ScalarType dtype, int64_t offset,
                          const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  LINKBOY_CHECK(sizes.size() == strides.size() && sizes.size() <= kMaxDimensions, "a tensor has ",
                sizes.size(), " sizes and ", strides.size(),
                " strides; it must have the same number of both, at most ", kMaxDimensions, ".");
  bool is_valid = offset >= 0;
  bool is_empty = false;
  int64_t num_elements = 1;  // Sizes of 0 count as 1, so that no later product overflows.
  int64_t last = offset;     // The largest index into the storage.
  for (std::size_t i = 0; i < sizes.size() && is_valid; ++i) {
    const int64_t size = std::max<int64_t>(sizes[i], 1);
    int64_t distance = 0;
    is_empty = is_empty || sizes[i] == 0;
    is_valid = sizes[i] >= 0 && strides[i] >= 0 &&
               !__builtin_mul_overflow(num_elements, size, &num_elements) &&
               !__builtin_mul_overflow(size - 1, strides[i], &distance) &&
               !__builtin_add_overflow(last, distance, &last);
  }
  // No element has more than 16 bytes, so the sizes in bytes below the limit do not overflow.
  constexpr int64_t kLimit = std::numeric_limits<int64_t>::max() / 16;
  is_valid =
      is_valid && num_elements < kLimit && last < kLimit &&
      (is_empty || static_cast<uint64_t>(last + 1) * c10::elementSize(dtype) <= storage.nbytes());
  LINKBOY_CHECK(is_valid, "a tensor of sizes ", c10::IntArrayRef(sizes), ", strides ",
                c10::IntArrayRef(strides), " at offset ", offset,
                " does not lie within its storage of ", storage.nbytes(),
                " bytes. Use another copy.");
  return at::empty({0}, at::TensorOptions().dtype(dtype)).set_(storage, offset, sizes, strides);
}

}  // namespace linkboy
