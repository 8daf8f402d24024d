#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// How much a message matters.
enum class LogLevel { debug, info, warning, error };
LINKBOY_ENUM_NAMES(LogLevel, debug, info, warning, error)

/// One message of a process.
struct LogMessage {
  /// How much it matters.
  LogLevel level = LogLevel::info;
  /// One line or several, without a line break at the end. Valid during the call alone.
  std::string_view text{};
  /// Of the process that logs.
  int64_t rank = 0;
};

/// Returns the message as it is printed: "WARNING: ..." or "ERROR: ..." of these levels.
LINKBOY_API std::string as_printed(LogLevel level, std::string_view message);

/// Takes the messages of a process in place of its standard output: what linkboy prints, its
/// warnings and errors, and what the program logs. `AcceleratorOptions::logger` takes one;
/// `cli::make_logger` makes one that writes a file beside the terminal.
class LINKBOY_API Logger {
 public:
  virtual ~Logger() = default;
  /// Any thread may call it.
  virtual void log(const LogMessage& message) = 0;
};

}  // namespace linkboy
