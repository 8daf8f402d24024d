#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Severity of a message.
enum class LogLevel { debug, info, warning, error };
LINKBOY_ENUM_NAMES(LogLevel, debug, info, warning, error)

/// One message from a process.
struct LogMessage {
  /// Severity of the message.
  LogLevel level = LogLevel::info;
  /// Text of one or more lines, without a line break at the end. Valid only during `Logger::log`.
  std::string_view text{};
  /// Rank of the process that logged the message.
  int64_t rank = 0;
};

/// Returns the message in its printed form; `warning` and `error` messages begin with "WARNING: "
/// and "ERROR: ".
LINKBOY_API std::string as_printed(LogLevel level, std::string_view message);

/// Receives the messages of a process instead of its standard output: linkboy's lines, warnings and
/// errors, and the messages that the program logs. Set it as `AcceleratorOptions::logger`.
/// `cli::make_logger` creates one that writes to a file in addition to the terminal.
class LINKBOY_API Logger {
 public:
  virtual ~Logger() = default;
  /// Handles one message. Any thread may call it.
  virtual void log(const LogMessage& message) = 0;
};

}  // namespace linkboy
