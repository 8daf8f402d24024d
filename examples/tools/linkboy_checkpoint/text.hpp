#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <complex>
#include <cstdint>
#include <string>
#include <string_view>

namespace linkboy_checkpoint {

/// Returns the value as Python prints it: None, True, 3, 3.0, [], (), {}. Returns a string
/// unchanged.
/// @param value  A leaf that is not a tensor.
std::string plain_text(const c10::IValue& value);

/// Returns a description of a leaf on one line: "float32 [2, 3] 24 bytes", "3", "\"text\"".
std::string description(const c10::IValue& leaf);

std::string dtype_name(c10::ScalarType dtype);
std::string shape_text(const at::Tensor& tensor);
uint64_t num_bytes(const at::Tensor& tensor);

/// Returns the text of an element or a statistic, with 6 significant digits unless it is an
/// integer.
std::string element_text(bool value);
std::string element_text(int64_t value);
std::string element_text(uint64_t value);
std::string element_text(double value);
std::string element_text(std::complex<double> value);

}  // namespace linkboy_checkpoint
