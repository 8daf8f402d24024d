// Adds a log file to the output of each process, to which each message is appended with one write.

#include "linkboy/cli/logger.hpp"

#include <c10/util/StringUtil.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "linkboy/extend/status_line.hpp"

namespace linkboy::cli {
namespace {

constexpr std::string_view kRank = "{rank}";

/// Returns "2026-01-31 12:00:00.000 [warning] [rank 0] text" and a line break.
std::string line_of(const LogMessage& message) {
  using namespace std::chrono;
  const auto since_1970 = duration_cast<milliseconds>(system_clock::now().time_since_epoch());
  const std::time_t seconds = since_1970.count() / 1000;
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03} [{}] [rank {}] {}\n", local,
                     since_1970.count() % 1000, enum_name(message.level), message.rank,
                     message.text);
}

class FileLogger final : public Logger {
 public:
  explicit FileLogger(LoggerOptions options) : options_(std::move(options)) {
    if (!options_.file) return;
    options_.file = std::filesystem::absolute(*options_.file);
    check_writable(path_of(0));  // creates missing folders
  }

  void log(const LogMessage& message) override {
    if (message.level < options_.level) return;
    if (options_.print) print(message);
    if (!options_.file) return;
    try {
      append(message.rank, line_of(message));
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

  /// Without a longer-lived buffer, no message is lost if the process is killed.
  void append(int64_t rank, const std::string& line) const {
    const std::filesystem::path path = path_of(rank);
    std::filesystem::create_directories(path.parent_path());  // its name may contain the rank
    std::ofstream file(path, std::ios::app);
    file << line << std::flush;
    if (!file) throw Error(std::generic_category().message(errno));
  }

  void tell_failure(const std::string& why) {
    if (is_failure_told_.exchange(true)) return;
    write_above_status_line(
        stdout, as_printed(LogLevel::error,
                           c10::str("the log file ", *options_.file, " cannot be written: ", why,
                                    ". The run continues without it.")));
  }

  LoggerOptions options_;
  std::atomic<bool> is_failure_told_{false};
};

}  // namespace

std::shared_ptr<Logger> make_logger(const LoggerOptions& options) {
  return std::make_shared<FileLogger>(options);
}

}  // namespace linkboy::cli
