// Helpers for tests of files in the safetensors format.

#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/file_bytes.hpp"
#include "linkboy/checkpoint/safetensors.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing {

/// Returns the bytes of a file: the length of the header, the header `json` and `data`.
inline std::string file_of(const std::string& json, const std::string& data = "") {
  return little_endian(uint64_t{json.size()}) + json + data;
}

inline at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.contiguous().view({-1}).view(at::kByte);
}

/// Compares the bytes, because some of the dtypes do not support equality.
inline void expect_same(const at::Tensor& actual, const at::Tensor& expected) {
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type());
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_TRUE(actual.is_contiguous());
  EXPECT_TRUE(torch::equal(bytes_of(actual), bytes_of(expected.resolve_conj())));
}

inline at::Tensor tensor_of(const SafeTensors& contents, const std::string& name) {
  for (const auto& [key, tensor] : contents.tensors) {
    if (key == name) return tensor;
  }
  ADD_FAILURE() << "there is no " << name;
  return {};
}

inline std::vector<std::string> names_of(const SafeTensors& contents) {
  std::vector<std::string> names;
  for (const auto& named : contents.tensors) names.push_back(named.first);
  return names;
}

/// Returns all dtypes of the format, in the order in which their tensors are stored in a file.
inline std::vector<at::ScalarType> dtypes() {
  using enum at::ScalarType;
  return std::vector<at::ScalarType>({UInt64, Long, Double, ComplexFloat, Float, UInt32, Int,
                                      BFloat16, Half, UInt16, Short, Float8_e5m2fnuz,
                                      Float8_e4m3fnuz, Float8_e8m0fnu, Float8_e4m3fn, Float8_e5m2,
                                      Char, Byte, Bool});
}

/// Returns 2 x 3 elements that consist of the bytes 0, 1, 2, ... For bool, they alternate between 0
/// and 1.
inline at::Tensor pattern(at::ScalarType dtype) {
  const auto num_bytes = 6 * static_cast<int64_t>(c10::elementSize(dtype));
  const at::Tensor bytes = torch::arange(num_bytes, at::kByte);
  return (dtype == at::kBool ? bytes.remainder(2) : bytes).view(dtype).view({2, 3});
}

inline NamedTensors one_of_each_dtype() {
  NamedTensors tensors;
  for (const auto dtype : dtypes()) tensors.emplace_back(c10::toString(dtype), pattern(dtype));
  return tensors;
}

class SafeTensorsTest : public ::testing::Test {
 protected:
  SafeTensors read(const std::string& bytes, bool mmap = true) const {
    write_bytes(path_, bytes);
    return read_safetensors(path_, mmap);
  }
  /// Expects that a file with this header and data is refused.
  void expect_refused(const std::string& json, const std::string& message,
                      const std::string& data = "") const {
    SCOPED_TRACE(json.substr(0, 200));
    EXPECT_ERROR(read(file_of(json, data)), message);
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "x.safetensors";
};

/// Runs each test with and without mmap.
class SafeTensorsModesTest : public SafeTensorsTest, public ::testing::WithParamInterface<bool> {
 protected:
  SafeTensors read() const { return read_safetensors(path_, GetParam()); }
  SafeTensors read(const std::string& bytes) const {
    return SafeTensorsTest::read(bytes, GetParam());
  }
};

}  // namespace linkboy::testing
