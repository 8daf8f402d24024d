#pragma once

#include <cstdlib>
#include <string_view>

#include "linkboy/error.hpp"

namespace linkboy {

/// Returns whether an environment variable is 1; `otherwise` if it is not set.
/// @throws Error if it is neither 0 nor 1.
inline bool environment_flag(const char* name, bool otherwise) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return otherwise;
  const std::string_view text = value;
  LINKBOY_CHECK(text == "0" || text == "1", name, " is \"", text,
                "\"; it must be 0 or 1, or not set.");
  return text == "1";
}

}  // namespace linkboy
