#pragma once

#include <string>
#include <string_view>

namespace linkboy {

/// Returns the first line of an exception's message, without the stack trace that LibTorch appends.
inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace linkboy
