#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace linkboy::cli {

/// A file of log messages. spdlog and LibTorch's headers use different versions of {fmt}, so this
/// header and its source must not include headers of LibTorch.
class LogFile {
 public:
  /// Opens `path` for appending.
  /// @param on_failure  Receives the reason if a message cannot be written.
  /// @throws std::exception if the file cannot be opened.
  LogFile(const std::string& path, std::function<void(const std::string&)> on_failure);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  /// Writes "2026-01-31 12:00:00.000 [warning] [rank 0] text". Thread-safe.
  /// @param level  "debug", "info", "warning" or "error".
  void write(std::string_view level, long rank, std::string_view text);

 private:
  struct Spdlog;
  std::unique_ptr<Spdlog> spdlog_;
};

}  // namespace linkboy::cli
