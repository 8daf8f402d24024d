#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <complex>
#include <cstdint>
#include <string>
#include <string_view>

namespace linkboy_checkpoint {

/// The value as Python writes it: None, True, 3, 3.0, [], (), {}. A string stands as it is.
/// @param value  A leaf that is no tensor.
std::string plain_text(const c10::IValue& value);

/// What a leaf is, on one line: "float32 [2, 3] 24 bytes", "3", "\"text\"".
std::string description(const c10::IValue& leaf);

std::string dtype_name(c10::ScalarType dtype);
std::string shape_text(const at::Tensor& tensor);
uint64_t num_bytes(const at::Tensor& tensor);

/// An element or a number made of several, with 6 digits if it is no integer.
std::string element_text(bool value);
std::string element_text(int64_t value);
std::string element_text(uint64_t value);
std::string element_text(double value);
std::string element_text(std::complex<double> value);

}  // namespace linkboy_checkpoint
