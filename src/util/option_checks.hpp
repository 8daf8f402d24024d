// Checks of options that several classes have.

#pragma once

#include <cstdint>
#include <optional>

#include "linkboy/error.hpp"

namespace linkboy {

/// @throws OptionError if `value` is less than 1.
inline void check_at_least_one(const char* name, int64_t value) {
  LINKBOY_CHECK_OPTION(value >= 1, name, " is ", value, "; it must be at least 1.");
}

/// @throws OptionError if `value` is given but not positive.
inline void check_clip_value(const char* name, const std::optional<double>& value) {
  LINKBOY_CHECK_OPTION(!value || *value > 0.0, name, " is ", *value,
                       "; it must be positive. Leave it out to disable clipping.");
}

}  // namespace linkboy
