// The progress bar and its line of the terminal. tests/program/progress_bar_test.py uses real
// terminals.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <regex>

#include "linkboy/callbacks/metric_callback.hpp"
#include "linkboy/callbacks/progress_bar.hpp"
#include "linkboy/extend/status_line.hpp"
#include "linkboy/metrics/classification.hpp"
#include "support/at_update.hpp"
#include "support/failing_evaluation.hpp"
#include "support/matchers.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::progress_bar_test {
namespace {

using Mode = ProgressBarOptions::Mode;

/// Returns what was written to a file and closes it.
std::string written_to(std::FILE* file) {
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

std::string bar_output(ProgressBarOptions options, CallbackList callbacks = {},
                       const TrainOptions& train_options = {.train_dataset = toy_data(8),
                                                            .eval_dataset = toy_data(4),
                                                            .per_device_batch_size = 2,
                                                            .num_epochs = 1}) {
  std::FILE* file = std::tmpfile();
  options.stream = file;
  options.bar_interval = std::chrono::milliseconds(0);
  callbacks.insert(callbacks.begin(), std::make_shared<ProgressBar>(options));
  Toy(std::move(callbacks)).trainer.train(train_options);
  return written_to(file);
}

TEST(ProgressBarTest, DrawsShareCountsTimesSpeedLossAndLearningRate) {
  const std::string text = bar_output({.mode = Mode::bar});
  for (const char* part : {"\repoch 1  25% |", "#", "| 1/4 [00:00<00:0", " samples/s, loss ",
                           ", lr 0.1]", "epoch 1 100% |", "\reval  50% |", "eval 100% |", "]"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nis not in:\n" << text;
  }
  EXPECT_EQ(text.find("nan"), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST(ProgressBarTest, ShowsTheCurrentMetrics) {
  const auto accuracy = std::make_shared<Accuracy>(AccuracyOptions{.num_classes = 3});
  const CallbackList metrics{
      make<MetricCallback>(MetricCollection{{"accuracy", accuracy}}, {.measure_training = true})};
  const std::string shown =
      bar_output({.mode = Mode::plain, .plain_interval = {}, .show_metrics = true}, metrics);
  // After 2, 4, 6 and 8 samples, and after 2 and 4 of the evaluation. The history has the last
  // value of each. With losses from a device, fewer lines are drawn: at least the last one.
  const std::string number = R"( \d\.\d{4})";
  const std::string least = test_device() == "cpu" ? "2" : "1";
  const std::regex lines("(epoch 1 [^\n]*, accuracy" + number + ", lr 0.1\\]\n){" + least +
                         ",5}(eval [^\n]*, accuracy" + number + "\\]\n){1,3}");
  EXPECT_TRUE(std::regex_match(shown, lines)) << shown;
  EXPECT_THAT(bar_output({.mode = Mode::plain}, metrics), Not(HasSubstr("accuracy")));
}

TEST(ProgressBarTest, WritesPlainLinesWithoutATerminal) {
  const std::string text = bar_output({.mode = Mode::automatic});
  EXPECT_THAT(text, Not(HasSubstr("\r")));
  EXPECT_THAT(text, StartsWith("epoch 1 100% 4/4 [00:0"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST(ProgressBarTest, AnEpochEndedByANumberOfUpdatesReaches100Percent) {
  const TrainOptions options{.train_dataset = toy_data(20),
                             .per_device_batch_size = 2,
                             .num_epochs = 1,
                             .max_num_updates = 3,
                             .gradient_accumulation_steps = 2};
  EXPECT_THAT(bar_output({.mode = Mode::plain}, {}, options), StartsWith("epoch 1 100% 6/6 ["));
}

TEST(ProgressBarTest, IsSilentOnRequest) { EXPECT_EQ(bar_output({.mode = Mode::none}), ""); }

TEST(ProgressBarTest, EndsItsLineWhenTheRunStops) {
  EXPECT_THAT(bar_output({.mode = Mode::bar}, {stop_at(1)}), EndsWith("\x1b[K\n"));
}

TEST(ProgressBarTest, AnIntermediateEvaluationHasASeparateNamedBar) {
  const auto evaluate_once = std::make_shared<AtUpdate>(
      2, [](Trainer& trainer) { trainer.evaluate_now({.metric_prefix = "intermediate_"}); });
  const std::string text = bar_output({.mode = Mode::plain}, {evaluate_once});
  EXPECT_THAT(text, StartsWith("intermediate_eval 100% 2/2 ["));
  EXPECT_THAT(text, HasSubstr("\nepoch 1 100% 4/4 ["));
}

TEST(ProgressBarTest, AnEvaluationWhoseErrorIsCaughtDoesNotHideTheEpoch) {
  for_each_failing_evaluation([](const std::shared_ptr<Callback>& failing) {
    EXPECT_THAT(bar_output({.mode = Mode::plain}, {failing}), HasSubstr("epoch 1 100% 4/4 ["));
  });
}

TEST(ProgressBarTest, AStreamThatCannotBeWrittenDoesNotEndTheRun) {
  for (const auto mode : {Mode::plain, Mode::bar}) {
    std::FILE* full = std::fopen("/dev/full", "w");
    ASSERT_NE(full, nullptr);
    ProgressBarOptions options{.mode = mode, .stream = full};
    options.bar_interval = options.plain_interval = std::chrono::milliseconds(0);
    Toy toy({std::make_shared<ProgressBar>(options)});
    EXPECT_EQ(toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 2}).num_epochs, 2);
    EXPECT_NE(std::ferror(full), 0) << "the bar has written";
    std::fclose(full);
  }
}

TEST(StatusLineTest, PrintedLinesAppearAboveTheStatusLine) {
  std::FILE* file = std::tmpfile();
  {
    StatusLine line(file);
    line.show("50%");
    write_above_status_line(file, "note");
    line.keep();
    write_above_status_line(file, "end");
  }
  EXPECT_EQ(written_to(file), "\r50%\x1b[K\r\x1b[Knote\n\r50%\x1b[K\nend\n");
}

}  // namespace
}  // namespace linkboy::testing::progress_bar_test
