#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "linkboy/export.hpp"
#include "linkboy/run/logger.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy::cli {

/// Where messages go.
struct LoggerOptions {
  /// The least level that is logged.
  LogLevel level = LogLevel::info;
  /// Messages are appended to this file, each with its time, level and rank, and are in it when the
  /// call returns. Its folder is made if need be. All processes that log write to it; with "{rank}"
  /// in the name each has a file of its own. None writes no file.
  std::optional<std::filesystem::path> file{};
  /// Whether messages are printed as well, as they would be without a logger.
  bool print = true;

  LINKBOY_FIELDS(level, file, print);
};

/// Makes a logger for `AcceleratorOptions::logger`. A file that can no longer be written does not
/// end the run: that is printed, once.
/// @throws FileError if the file cannot be written.
LINKBOY_API std::shared_ptr<Logger> make_logger(const LoggerOptions& options);

}  // namespace linkboy::cli
