// Makes a tensor from a storage, after a check that all of its elements lie within the storage.

#include "rebuild_tensor.hpp"

#include <torch/types.h>

#include <algorithm>
#include <limits>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

// A product or sum that overflows saturates. No storage is that large.
int64_t saturating_multiply(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<int64_t>::max() : result;
}

int64_t saturating_add(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_add_overflow(a, b, &result) ? std::numeric_limits<int64_t>::max() : result;
}

}  // namespace

at::Tensor rebuild_tensor(const c10::Storage& storage, c10::ScalarType dtype, int64_t offset,
                          const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  LINKBOY_CHECK(sizes.size() == strides.size() && sizes.size() <= kMaxDimensions, "a tensor has ",
                sizes.size(), " sizes and ", strides.size(),
                " strides; it must have the same number of both, at most ", kMaxDimensions, ".");
  bool is_valid = offset >= 0;
  int64_t num_elements = 1;  // Sizes of 0 count as 1, so that no later product overflows.
  int64_t last = offset;     // The largest index into the storage.
  bool is_empty = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    is_valid = is_valid && sizes[i] >= 0 && strides[i] >= 0;
    if (!is_valid) break;
    is_empty = is_empty || sizes[i] == 0;
    num_elements = saturating_multiply(num_elements, std::max<int64_t>(sizes[i], 1));
    last =
        saturating_add(last, saturating_multiply(std::max<int64_t>(sizes[i], 1) - 1, strides[i]));
  }
  constexpr int64_t kLimit = std::numeric_limits<int64_t>::max() / 16;
  const auto element_size = static_cast<int64_t>(c10::elementSize(dtype));
  is_valid = is_valid && num_elements < kLimit && last < kLimit &&
             (is_empty || saturating_multiply(last + 1, element_size) <=
                              static_cast<int64_t>(storage.nbytes()));
  LINKBOY_CHECK(is_valid, "a tensor of sizes ", c10::IntArrayRef(sizes), ", strides ",
                c10::IntArrayRef(strides), " at offset ", offset,
                " does not lie within its storage of ", storage.nbytes(),
                " bytes. Use another copy.");
  return at::empty({0}, at::TensorOptions().dtype(dtype)).set_(storage, offset, sizes, strides);
}

}  // namespace linkboy
