#include "cli/log_file.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>

#include <utility>

namespace linkboy::cli {

struct LogFile::Spdlog {
  spdlog::logger logger;
};

LogFile::LogFile(const std::string& path, std::function<void(const std::string&)> on_failure)
    : spdlog_(std::make_unique<Spdlog>(Spdlog{
          spdlog::logger("linkboy", std::make_shared<spdlog::sinks::basic_file_sink_mt>(path))})) {
  spdlog::logger& logger = spdlog_->logger;
  logger.set_pattern("%Y-%m-%d %H:%M:%S.%e [%l] %v");
  logger.set_level(spdlog::level::debug);  // the caller has already filtered
  logger.flush_on(spdlog::level::debug);   // so that nothing is lost if the process is killed
  logger.set_error_handler(std::move(on_failure));
}

LogFile::~LogFile() = default;

void LogFile::write(std::string_view level, long rank, std::string_view text) {
  spdlog_->logger.log(spdlog::level::from_str(std::string(level)), "[rank {}] {}", rank, text);
}

}  // namespace linkboy::cli
