#include "linkboy/cli/logger.hpp"

#include <c10/util/StringUtil.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "cli/log_file.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "linkboy/extend/status_line.hpp"

namespace linkboy::cli {
namespace {

constexpr std::string_view kRank = "{rank}";

class FileLogger final : public Logger {
 public:
  explicit FileLogger(LoggerOptions options) : options_(std::move(options)) {
    if (options_.file) check_writable(path_of(0));
  }

  void log(const LogMessage& message) override {
    if (message.level < options_.level) return;
    if (options_.print) print(message);
    if (!options_.file) return;
    try {
      file_of(message.rank).write(enum_name(message.level), message.rank, message.text);
    } catch (const std::exception& error) {
      tell_failure(error.what());
    }
  }

 private:
  static void print(const LogMessage& message) {
    const std::string who = message.rank == 0 ? "" : c10::str("[rank ", message.rank, "] ");
    write_above_status_line(stdout, who + as_printed(message.level, message.text));
  }

  std::filesystem::path path_of(int64_t rank) const {
    std::string path = options_.file->string();
    if (const auto place = path.find(kRank); place != std::string::npos) {
      path.replace(place, kRank.size(), std::to_string(rank));
    }
    return path;
  }

  /// Opens the file for the first message, because the logger is made before the process knows its
  /// rank.
  LogFile& file_of(int64_t rank) {
    const std::lock_guard lock(mutex_);
    auto& file = files_[rank];
    if (!file) {
      file = std::make_unique<LogFile>(path_of(rank).string(),
                                       [this](const std::string& why) { tell_failure(why); });
    }
    return *file;
  }

  void tell_failure(const std::string& why) {
    if (is_failure_told_.exchange(true)) return;
    write_above_status_line(
        stdout, as_printed(LogLevel::error,
                           c10::str("the log file ", *options_.file, " cannot be written: ", why,
                                    ". The run continues without it.")));
  }

  LoggerOptions options_;
  std::mutex mutex_;
  std::map<int64_t, std::unique_ptr<LogFile>> files_;
  std::atomic<bool> is_failure_told_{false};
};

}  // namespace

std::shared_ptr<Logger> make_logger(const LoggerOptions& options) {
  return std::make_shared<FileLogger>(options);
}

}  // namespace linkboy::cli
