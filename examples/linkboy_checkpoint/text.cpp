#include "text.hpp"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <cmath>

namespace linkboy_checkpoint {
namespace {

struct Character {
  uint32_t code;
  std::size_t size;  // 0 if the bytes are not UTF-8.
};

Character first_character(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t size = lead >= 0xc2 && lead < 0xe0   ? 2
                           : lead >= 0xe0 && lead < 0xf0 ? 3
                           : lead >= 0xf0 && lead < 0xf5 ? 4
                                                         : 0;
  if (size == 0 || text.size() < size) return {lead, 0};
  uint32_t code = lead & (0x7fU >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return {lead, 0};
    code = code << 6U | (byte(i) & 0x3fU);
  }
  const bool is_too_long = (size == 3 && code < 0x800) || (size == 4 && code < 0x10000);
  const bool is_no_character = (code >= 0xd800 && code < 0xe000) || code > 0x10ffff;
  return {code, is_too_long || is_no_character ? 0 : size};
}

bool is_control(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) ||  // C0, DEL, C1
         code == 0x061c || code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);  // Lines, directions
}

std::string escaped_with(std::string_view text, char quote) {
  std::string result;
  while (!text.empty()) {
    const auto [code, size] = first_character(text);
    if (code == '\n') {
      result += "\\n";
    } else if (code == '\r') {
      result += "\\r";
    } else if (code == '\t') {
      result += "\\t";
    } else if (size == 0 || (size == 1 && is_control(code))) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (is_control(code)) {
      result += fmt::format("\\u{:04x}", code);
    } else {
      if (text[0] == '\\' || (quote != '\0' && text[0] == quote)) result += '\\';
      result += text.substr(0, size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return result;
}

}  // namespace

std::string escaped(std::string_view text) { return escaped_with(text, '\0'); }
std::string in_quotes(const std::string& text) { return '"' + escaped_with(text, '"') + '"'; }

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
  if (leaf.isString()) return in_quotes(leaf.toStringRef());
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
