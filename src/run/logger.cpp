// The prefixes of warnings and errors.

#include "linkboy/run/logger.hpp"

namespace linkboy {

std::string as_printed(LogLevel level, std::string_view message) {
  std::string line;
  if (level == LogLevel::warning) line = "WARNING: ";
  if (level == LogLevel::error) line = "ERROR: ";
  return line.append(message);
}

}  // namespace linkboy
