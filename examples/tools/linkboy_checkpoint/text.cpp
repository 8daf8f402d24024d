#include "text.hpp"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <cmath>

#include <linkboy/util/printable.hpp>

namespace linkboy_checkpoint {
std::string plain_text(const c10::IValue& value) {
  if (value.isNone()) return "None";
  if (value.isBool()) return element_text(value.toBool());
  if (value.isInt()) return element_text(value.toInt());
  if (value.isString()) return value.toStringRef();
  if (value.isList()) return "[]";
  if (value.isTuple()) return "()";
  if (value.isGenericDict()) return "{}";
  if (!value.isDouble()) return value.tagKind();
  std::string text = fmt::format("{}", value.toDouble());
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string description(const c10::IValue& leaf) {
  if (leaf.isString()) return linkboy::quoted(leaf.toStringRef());
  if (!leaf.isTensor()) return plain_text(leaf);
  const at::Tensor& tensor = leaf.toTensor();
  return fmt::format("{} {} {} bytes", dtype_name(tensor.scalar_type()), shape_text(tensor),
                     num_bytes(tensor));
}

std::string dtype_name(c10::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

std::string shape_text(const at::Tensor& tensor) {
  std::string text;
  for (const int64_t size : tensor.sizes()) text += (text.empty() ? "" : ", ") + element_text(size);
  return '[' + text + ']';
}

uint64_t num_bytes(const at::Tensor& tensor) {
  return static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
}

std::string element_text(bool value) { return value ? "True" : "False"; }
std::string element_text(int64_t value) { return std::to_string(value); }
std::string element_text(uint64_t value) { return std::to_string(value); }
std::string element_text(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{:.6g}", value);
}
std::string element_text(std::complex<double> value) {
  const std::string imaginary = element_text(value.imag());
  return element_text(value.real()) + (imaginary[0] == '-' ? "" : "+") + imaginary + 'j';
}

}  // namespace linkboy_checkpoint
