// Escapes text from files, so that a terminal does not interpret it.

#include "linkboy/util/printable.hpp"

#include <array>
#include <cstdint>
#include <cstdio>

namespace linkboy {
namespace {

struct Character {
  uint32_t code;
  std::size_t size;  // 0 if the bytes are not UTF-8
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
         (code >= 0x2066 && code <= 0x2069);  // line separators, directions
}

void append_code(std::string& text, const char* format, unsigned code) {
  std::array<char, 16> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, code);
  text += buffer.data();
}

// Appends the first character of `rest`, or its escape sequence, and removes it from `rest`.
void take_character(std::string_view& rest, std::string& result) {
  const auto [code, size] = first_character(rest);
  if (size == 0 || (size == 1 && is_control(code))) {
    append_code(result, "\\x%02x", static_cast<unsigned char>(rest[0]));
  } else if (is_control(code)) {
    append_code(result, "\\u%04x", code);
  } else {
    result += rest.substr(0, size);
  }
  rest.remove_prefix(size == 0 ? 1 : size);
}

std::string escaped(std::string_view text, std::size_t max_size, char quote) {
  std::string result;
  std::string_view rest = text;
  while (!rest.empty()) {
    if (text.size() - rest.size() >= max_size) return result + "...";
    const std::size_t place = std::string_view("\n\r\t").find(rest[0]);
    if (place != std::string_view::npos) {
      result += '\\';
      result += "nrt"[place];
      rest.remove_prefix(1);
    } else {
      if (rest[0] == '\\' || (quote != '\0' && rest[0] == quote)) result += '\\';
      take_character(rest, result);
    }
  }
  return result;
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_size) {
  return escaped(text, max_size, '\0');
}

std::string quoted(std::string_view text, std::size_t max_size) {
  return '"' + escaped(text, max_size, '"') + '"';
}

std::string printable_message(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    if (text[0] == '\n' || text[0] == '\t') {
      result += text[0];
      text.remove_prefix(1);
    } else {
      take_character(text, result);
    }
  }
  return result;
}

}  // namespace linkboy
