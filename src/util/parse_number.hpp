#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace linkboy {

/// Parses `text` in the C locale. Returns nullopt if any part of it does not belong to the number.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end) return std::nullopt;
  return number;
}

}  // namespace linkboy
