#include "linkboy/cli/logger.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <regex>
#include <thread>

#include "linkboy/callbacks/default_callbacks.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/error.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/file_size_limit.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::logger_test {
namespace {

using ::testing::internal::CaptureStdout;
using ::testing::internal::GetCapturedStdout;

/// Keeps all messages in memory.
struct KeepingLogger : Logger {
  void log(const LogMessage& message) override {
    lines.push_back(std::string(enum_name(message.level)) + ": " + std::string(message.text));
    ranks.push_back(message.rank);
  }
  std::vector<std::string> lines;
  std::vector<int64_t> ranks;
};

struct LoggerTest : ::testing::Test {
  std::shared_ptr<Logger> file_logger(LogLevel level = LogLevel::info, bool print = false) {
    return cli::make_logger({.level = level, .file = folder_ / "run.log", .print = print});
  }
  std::string log_text() const { return read_bytes(folder_ / "run.log"); }

  TemporaryFolder folder_;
};

TEST_F(LoggerTest, WithoutALoggerWarningsAndErrorsArePrintedWithTheirLevel) {
  const Accelerator accelerator({.device = "cpu"});
  EXPECT_EQ(accelerator.logger(), nullptr);
  CaptureStdout();
  accelerator.log(LogLevel::debug, "not shown");
  accelerator.log(LogLevel::info, "a line");
  accelerator.log(LogLevel::warning, "a doubt");
  accelerator.log(LogLevel::error, "a fault", {});
  accelerator.log(LogLevel::error, "of another rank", {1, 2});
  EXPECT_EQ(GetCapturedStdout(), "a line\nWARNING: a doubt\nERROR: a fault\n");
}

TEST_F(LoggerTest, ReceivesTheMessagesThatWouldBePrinted) {
  const auto logger = std::make_shared<KeepingLogger>();
  const Accelerator accelerator({.device = "cpu", .logger = logger});
  CaptureStdout();
  accelerator.print("a line");
  accelerator.log(LogLevel::debug, "a detail");
  EXPECT_EQ(GetCapturedStdout(), "");
  EXPECT_EQ(logger->lines, (std::vector<std::string>{"info: a line", "debug: a detail"}));
  EXPECT_EQ(logger->ranks, (std::vector<int64_t>{0, 0}));
}

TEST_F(LoggerTest, ReceivesTheStartTheEndAndTheExceptionOfARun) {
  const auto logger = std::make_shared<KeepingLogger>();
  const auto model = toy_model();
  CallbackList callbacks{make<LambdaCallback>(
      {.on_train_epoch_end = [](Trainer&) { throw Error("the data are gone"); }})};
  Trainer trainer(
      model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
      {.callbacks = std::move(callbacks), .accelerator = {.device = "cpu", .logger = logger}});
  EXPECT_ERROR(trainer.train({.train_dataset = toy_data(4), .num_epochs = 1}), "are gone");
  ASSERT_GE(logger->lines.size(), 2);
  EXPECT_EQ(logger->lines.front(), "info: Starting training run");
  EXPECT_EQ(logger->lines.back(), "error: The run has failed: the data are gone");
}

TEST_F(LoggerTest, WithoutALoggerMessagesGoThroughPrint) {
  Toy toy;
  toy.trainer.log(LogLevel::debug, "not shown");
  toy.trainer.log(LogLevel::warning, "a doubt");
  toy.trainer.log(LogLevel::info, "of another rank", {1});
  EXPECT_EQ(toy.trainer.lines, std::vector<std::string>{"WARNING: a doubt"});
}

TEST_F(LoggerTest, AFileContainsTimeLevelAndRankOfEachMessage) {
  const auto logger = file_logger();
  logger->log({LogLevel::info, "a line with {} braces", 0});
  logger->log({LogLevel::error, "a fault", 3});
  logger->log({LogLevel::debug, "left out", 0});
  const std::regex expected(
      R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[info\] \[rank 0\] a line with \{\} braces\n)"
      R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[error\] \[rank 3\] a fault\n)");
  EXPECT_TRUE(std::regex_match(log_text(), expected)) << log_text();
}

TEST_F(LoggerTest, AlsoPrintsTheMessagesThatGoToTheFile) {
  CaptureStdout();
  const auto logger = file_logger(LogLevel::warning, /*print=*/true);
  logger->log({LogLevel::info, "left out", 0});
  logger->log({LogLevel::warning, "a doubt", 2});
  EXPECT_EQ(GetCapturedStdout(), "[rank 2] WARNING: a doubt\n");
  EXPECT_NE(log_text().find("[warning] [rank 2] a doubt"), std::string::npos);
}

TEST_F(LoggerTest, AFileIsAppendedTo) {
  file_logger()->log({LogLevel::info, "first", 0});
  file_logger()->log({LogLevel::info, "second", 0});
  EXPECT_LT(log_text().find("first"), log_text().find("second"));
}

TEST_F(LoggerTest, EachRankHasAFileIfTheNameContainsARank) {
  const auto logger = cli::make_logger({.file = folder_ / "logs" / "{rank}.log", .print = false});
  logger->log({LogLevel::info, "of two", 2});
  EXPECT_NE(read_bytes(folder_ / "logs" / "2.log").find("of two"), std::string::npos);
}

TEST_F(LoggerTest, TheFolderOfEachRankIsCreated) {
  const auto logger =
      cli::make_logger({.file = folder_ / "rank{rank}" / "run.log", .print = false});
  logger->log({LogLevel::info, "here", 3});
  EXPECT_THAT(read_bytes(folder_ / "rank3" / "run.log"), HasSubstr("[rank 3] here"));
}

TEST_F(LoggerTest, AFileThatCannotBeOpenedIsAnImmediateError) {
  EXPECT_ERROR(cli::make_logger({.file = folder_.path()}), folder_.path().string());
}

TEST_F(LoggerTest, AFailingFileIsReportedOnceAndDoesNotEndTheRun) {
  const auto logger = file_logger();
  logger->log({LogLevel::info, "before", 0});
  CaptureStdout();
  {
    const FileSizeLimit limit(20'000);  // also limits the captured output
    for (int i = 0; i < 3; ++i) logger->log({LogLevel::info, std::string(30'000, 'x'), 0});
  }
  const std::string printed = GetCapturedStdout();
  EXPECT_EQ(printed.find("ERROR: the log file \""), 0) << printed;
  EXPECT_NE(printed.find("run.log\" cannot be written: "), std::string::npos) << printed;
  EXPECT_EQ(std::count(printed.begin(), printed.end(), '\n'), 1) << printed;
}

TEST_F(LoggerTest, AnyThreadCanLog) {
  const auto logger = file_logger();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) logger->log({LogLevel::info, "from a thread", 0});
    });
  }
  for (auto& thread : threads) thread.join();
  const std::string text = log_text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 200);
}

}  // namespace
}  // namespace linkboy::testing::logger_test
