#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <complex>
#include <cstdint>

namespace linkboy_checkpoint {

/// Returns a tensor whose elements can be converted: `tensor`, or its bytes if its elements are
/// pairs of 4-bit numbers, which LibTorch cannot convert.
inline at::Tensor convertible(const at::Tensor& tensor) {
  const bool has_pairs = tensor.scalar_type() == at::kFloat4_e2m1fn_x2;
  return has_pairs ? tensor.view(at::kByte) : tensor;
}

/// Calls `visit` with flat, contiguous pieces of the tensors, in order and with the same piece of
/// each tensor. All tensors must have the same shape. Uses little memory even for large and strided
/// tensors.
template <std::size_t N, class Visit>
void visit_pieces(const std::array<at::Tensor, N>& tensors, const Visit& visit) {
  constexpr int64_t kPieceSize = int64_t{1} << 20;
  std::array<at::Tensor, N> pieces;
  const auto with_each = [&](const auto& take) {
    std::transform(tensors.begin(), tensors.end(), pieces.begin(), take);
    return pieces;
  };
  const int64_t num_elements = tensors[0].numel();
  if (num_elements <= kPieceSize) {
    if (num_elements == 0) return;
    visit(with_each([](const at::Tensor& t) { return t.contiguous().view(-1); }));
    return;
  }
  const int64_t num_rows = tensors[0].size(0);
  if (num_rows == 1) {
    visit_pieces(with_each([](const at::Tensor& t) { return t.select(0, 0); }), visit);
    return;
  }
  const int64_t step = std::max<int64_t>(1, kPieceSize / (num_elements / num_rows));
  for (int64_t row = 0; row < num_rows; row += step) {
    const int64_t count = std::min(step, num_rows - row);
    visit_pieces(with_each([=](const at::Tensor& t) { return t.narrow(0, row, count); }), visit);
  }
}

/// Returns the widest dtype of the same kind (integral, floating point or complex). uint64 has no
/// wider one and is returned unchanged.
inline at::ScalarType wide_type(at::ScalarType dtype) {
  if (dtype == at::kUInt64) return dtype;
  if (at::isComplexType(dtype)) return at::kComplexDouble;
  return at::isIntegralType(dtype, /*includeBool=*/true) ? at::kLong : at::kDouble;
}

/// Calls `use` with a value of the C++ type that corresponds to `wide`, a result of wide_type.
template <class Use>
void with_elements(at::ScalarType wide, const Use& use) {
  switch (wide) {
    case at::kLong:
      return use(int64_t{});
    case at::kUInt64:
      return use(uint64_t{});
    case at::kComplexDouble:
      return use(std::complex<double>{});
    default:
      return use(double{});
  }
}

/// Returns the elements of a piece whose dtype corresponds to T.
template <class T>
const T* elements_of(const at::Tensor& piece) {
  return static_cast<const T*>(piece.const_data_ptr());
}

}  // namespace linkboy_checkpoint
