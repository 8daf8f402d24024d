#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "linkboy/export.hpp"
#include "linkboy/run/logger.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy::cli {

/// Options of a logger.
struct LoggerOptions {
  /// Lowest level that is logged.
  LogLevel level = LogLevel::info;
  /// File to which messages are appended, with their time, level and rank. A message is in the file
  /// when the call returns. Missing folders are created. All processes that log write to this file;
  /// if its name contains "{rank}", each process writes a separate file. If it is not set, no file
  /// is written.
  std::optional<std::filesystem::path> file{};
  /// Whether messages are also printed, in the same form as without a logger.
  bool print = true;

  LINKBOY_FIELDS(level, file, print);
};

/// Creates a logger for `AcceleratorOptions::logger`. If writing to the file fails during a run,
/// the logger prints this once, and the run continues.
/// @throws FileError if the file cannot be written.
[[nodiscard]] LINKBOY_API std::shared_ptr<Logger> make_logger(const LoggerOptions& options);

}  // namespace linkboy::cli
