// Tests of HtmlReport: what the page's script draws, read by Python's parsers, and the records that
// a resumed run keeps.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "linkboy/tracking/html_report.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/file_size_limit.hpp"
#include "support/matchers.hpp"
#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::html_report_test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void log(HtmlReport& report, int64_t update, int64_t epoch, std::vector<TrackedScalar> scalars) {
  report.log_scalars(
      scalars, {.update = update, .epoch = epoch, .seconds = 1.7e9 + static_cast<double>(update)});
}

/// Logs the updates `first` to `last`, in epochs of four, with a loss for each update and epoch.
void log_updates(HtmlReport& report, int64_t first, int64_t last) {
  for (int64_t update = first; update <= last; ++update) {
    const auto value = 1.0 / static_cast<double>(update);
    const int64_t epoch = (update - 1) / 4 + 1;
    log(report, update, epoch, {{"train_loss", value}, {"lr", 0.1}});
    if (update % 4 == 0) {
      log(report, update, epoch, {{"train_loss_epoch", value}, {"eval_loss_epoch", 2 * value}});
    }
  }
}

class HtmlReportTest : public ::testing::Test {
 protected:
  std::string page() const { return read_bytes(path_); }

  /// Returns an outline of what the page's script draws.
  std::string outline() const { return run_python("report_peer.py", {"html", path_.string()}); }

  /// Returns the outline of a run with these values at the updates 1, 2, ... of an epoch.
  std::string outline_of(const std::string& name, const std::vector<double>& values) {
    report_.start({});
    for (std::size_t i = 0; i < values.size(); ++i) {
      log(report_, static_cast<int64_t>(i) + 1, 1, {{name, values[i]}});
    }
    report_.finish("finished", {});
    return outline();
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "report.html";
  HtmlReport report_{path_};
};

class DrawnReportTest : public HtmlReportTest {
 protected:
  void SetUp() override { SKIP_WITHOUT_PYTHON(); }
};

TEST_F(DrawnReportTest, DrawsEveryRecord) {
  report_.start({.name = "run", .config = {{"lr", "0.1"}}, .environment = {{"device", "cpu"}}});
  log_updates(report_, 1, 12);
  report_.log_histogram("weight", at::arange(100.0), {.update = 12, .epoch = 3});
  report_.log_text("note", "two\nlines", {.update = 12, .epoch = 3});
  report_.finish("early_stop", {});

  EXPECT_EQ(outline(), R"(Loss: 0 0.2 0.4 0.6 0.8 1 0 5 10 update
 train_loss 12 records: 12 values in 1 parts, 12 circles, 0 gaps
Loss per epoch: 0 0.1 0.2 0.3 0.4 0.5 1 2 3 epoch
 train_loss_epoch 3 records: 3 values in 1 parts, 3 circles, 0 gaps
 eval_loss_epoch 3 records: 3 values in 1 parts, 3 circles, 0 gaps
Learning rate: 0.09 0.095 0.1 0.105 0.11 0 5 10 update
 lr 12 records: 12 values in 1 parts, 12 circles, 0 gaps
weight: 0 99
| early_stop
| 12 updates
| epoch 3
| 11.0 s
| 2023-11-14 22:13:21 UTC to 2023-11-14 22:13:32 UTC
| train_loss 0.0833333
| train_loss_epoch 0.0833333
| eval_loss_epoch 0.166667
| lr 0.1
| mean 49.5, standard deviation 28.8661, 100 values; update 12
| epoch 3, update 12
| Metric Last Lowest at Highest at Records
| train_loss 0.0833333 0.0833333 epoch 3, update 12 1 epoch 1, update 1 12
| lr 0.1 0.1 epoch 1, update 1 0.1 epoch 1, update 1 12
| train_loss_epoch 0.0833333 0.0833333 epoch 3, update 12 0.25 epoch 1, update 4 3
| eval_loss_epoch 0.166667 0.166667 epoch 3, update 12 0.5 epoch 1, update 4 3
| lr 0.1
| device cpu
| two lines
)");
}

TEST_F(DrawnReportTest, MetricsThatDifferOnlyInThePhaseShareAChart) {
  report_.start({});
  for (const char* name : {"lr/group_0", "train_loss_epoch", "train_accuracy", "eval_loss_epoch",
                           "lr/group_1", "train_loss", "val/accuracy", "evaluation"}) {
    log(report_, 1, 1, {{name, 1.0}});
  }
  report_.finish("finished", {});

  const std::regex numbers(R"(( \d+ records)?:.*)");
  EXPECT_THAT(std::regex_replace(outline(), numbers, ""), StartsWith(R"(Loss per epoch
 train_loss_epoch
 eval_loss_epoch
Loss
 train_loss
Learning rate
 lr/group_0
 lr/group_1
Accuracy
 train_accuracy
 val/accuracy
Evaluation
 evaluation
)"));
}

TEST_F(DrawnReportTest, LearningRatesOverTwoDecadesHaveALogarithmicAxis) {
  EXPECT_THAT(outline_of("lr", {1e-1, kNaN, 0.9e-3}),
              StartsWith("Learning rate: 0.0001 0.001 0.01 0.1 1 "));
  EXPECT_THAT(outline_of("lr", {1e-1, 1.1e-3}), StartsWith("Learning rate: 0 0.02 0.04"));
  EXPECT_THAT(outline_of("lr", {1e-1, 0.9e-3, 0.0}), StartsWith("Learning rate: 0 0.02 0.04"));
  EXPECT_THAT(outline_of("loss", {1e-1, 0.9e-3}), StartsWith("Loss: 0 0.02 0.04 0.06 0.08 0.1 "));
}

TEST_F(DrawnReportTest, TicksAreMultiplesOfOneTwoAndFive) {
  const std::vector<std::pair<std::vector<double>, std::string>> cases = {
      {{0.1, 0.9}, "0 0.2 0.4 0.6 0.8 1 "},
      {{-3.0, 7.0}, "-4 -2 0 2 4 6 8 "},
      {{1e-5, 9e-5}, "0 2e-5 4e-5 6e-5 8e-5 0.0001 "},
      {{0.0, 4.1e6}, "0 1e+6 2e+6 3e+6 4e+6 5e+6 "},
      {{100.001, 100.003}, "100.001 100.0015 100.002 100.0025 100.003 "}};
  for (const auto& [values, ticks] : cases) {
    EXPECT_THAT(outline_of("loss", values), StartsWith("Loss: " + ticks));
  }
  const std::vector<std::pair<std::pair<int64_t, int64_t>, std::string>> updates = {
      {{1, 20}, " 0 5 10 15 20 update"},
      {{1, 50000}, " 0 10k 20k 30k 40k 50k update"},
      {{3, 3}, " 3 4 update"},
      {{1'000'010, 1'000'013}, " 1.00001M 1.000011M 1.000012M 1.000013M update"}};
  for (const auto& [range, ticks] : updates) {
    report_.start({});
    log(report_, range.first, 1, {{"loss", 1.0}});
    log(report_, range.second, 1, {{"loss", 2.0}});
    report_.finish("finished", {});
    EXPECT_THAT(outline(), HasSubstr(ticks));
  }
}

TEST_F(DrawnReportTest, NonFiniteValuesAreGaps) {
  const std::string drawn = outline_of("loss", {1.0, 0.5, kNaN, 3.0, HUGE_VAL});
  EXPECT_THAT(drawn, HasSubstr("loss 5 records: 3 values in 2 parts, 3 circles, 2 gaps\n"));
  EXPECT_THAT(drawn, HasSubstr("| loss ∞ 0.5 epoch 1, update 2 3 epoch 1, update 4 5\n"));
  EXPECT_THAT(drawn, HasSubstr("| 2 of 5 values of loss are not finite, first at update 3.\n"));
  EXPECT_THAT(outline_of("loss", {kNaN}), HasSubstr("| loss NaN – – 1\n"));
}

TEST_F(DrawnReportTest, LongLinesAreReducedToTheirExtent) {
  std::vector<double> values(3000, 1.0);
  values[1234] = 7.0;
  values[1235] = -7.0;
  const std::string drawn = outline_of("loss", values);
  std::smatch count;
  ASSERT_TRUE(
      std::regex_search(drawn, count, std::regex(R"(loss 3000 records: (\d+) values in 1)")));
  EXPECT_GT(std::stoi(count.str(1)), 500);
  EXPECT_LT(std::stoi(count.str(1)), 640);
  EXPECT_THAT(drawn, StartsWith("Loss: -10 -5 0 5 10 "));
}

TEST_F(DrawnReportTest, LongNoisyLinesHaveAnAverage) {
  std::vector<double> values(200, 1.0);
  EXPECT_THAT(outline_of("loss", values), Not(HasSubstr("average")));
  for (std::size_t i = 0; i < values.size(); i += 2) values[i] = 3.0;
  values[50] = kNaN;
  EXPECT_THAT(outline_of("loss", values), HasSubstr("99 circles, 1 gaps and an average\n"));
}

TEST_F(DrawnReportTest, ExtremeValuesCanBeDrawn) {
  const std::vector<std::vector<double>> cases = {
      {1.7e308, -1.7e308}, {5e-324, 0.0},      {0.0},
      {1e300, 1e300},      {1.0, 1.0 + 1e-15}, {kNaN, HUGE_VAL},
      {-1e-300, 1e-310},   {5e-324, 1.7e308}};
  for (const std::vector<double>& values : cases) {
    for (const char* name : {"loss", "lr"}) {
      const std::string drawn = outline_of(name, values);
      EXPECT_THAT(drawn, AllOf(HasSubstr(" records: "), Not(HasSubstr("undefined")))) << drawn;
    }
  }
}

TEST_F(DrawnReportTest, EscapesEveryText) {
  const std::string evil = "</script><script>alert('1 & \"2\"')</script><!--<a href=http:x>";
  report_.start({.name = evil, .config = {{evil, evil}}, .environment = {{evil, evil}}});
  log(report_, 1, 1, {{evil, 1.0}});
  report_.log_text(evil, evil, {});
  report_.log_histogram(evil, at::ones({3}), {});
  report_.finish(evil, {});

  const std::string drawn = outline();  // also checks the elements and attributes
  EXPECT_THAT(drawn, HasSubstr("\n " + evil + " 1 records: 1 values"));
  EXPECT_THAT(drawn, HasSubstr("\n| " + evil + " " + evil + "\n"));
  EXPECT_THAT(drawn, EndsWith("\n| " + evil + "\n"));
}

TEST_F(DrawnReportTest, APageWithoutMetricsSaysSo) {
  report_.start({});
  EXPECT_EQ(outline(), "| running\n| 0 updates\n| No metrics are recorded yet.\n");
  EXPECT_THAT(page(), HasSubstr("\"name\":\"report\""));  // that of the file
}

TEST_F(HtmlReportTest, FlushRespectsTheMinimumInterval) {
  for (const double seconds : {0.0, 1e9}) {
    SCOPED_TRACE(seconds);
    HtmlReport report(path_, {.seconds_between_writes = seconds});
    report.start({});
    log(report, 1, 1, {{"loss", 1.0}});
    const auto has_loss = HasSubstr("\"values\":{\"loss\":1.0}");
    EXPECT_THAT(page(), Not(has_loss));

    report.flush();
    EXPECT_EQ(::testing::Matches(has_loss)(page()), seconds == 0.0);

    report.finish("finished", {});
    EXPECT_THAT(page(), has_loss);
  }
}

TEST_F(HtmlReportTest, AResumedRunEndsWithThePageOfAnUninterruptedOne) {
  HtmlReport whole(folder_ / "whole.html");
  whole.start({.name = "run", .first_update = 6, .first_epoch = 1});
  log_updates(whole, 1, 12);
  whole.finish("finished", {});
  {
    HtmlReport killed(path_, {.seconds_between_writes = 0.0});
    killed.start({.name = "run"});
    log_updates(killed, 1, 9);
    log(killed, 9, 3, {{"of the killed one", 1.0}});
    killed.flush();
  }

  HtmlReport resumed(path_);
  resumed.start({.name = "run", .first_update = 6, .first_epoch = 1});
  log_updates(resumed, 7, 12);
  resumed.finish("finished", {});

  EXPECT_EQ(page(), read_bytes(folder_ / "whole.html"));
}

TEST_F(HtmlReportTest, KeepsTextsHistogramsAndNonFiniteValues) {
  const auto log_all = [](HtmlReport& report) {
    log(report, 1, 1, {{"a", kNaN}, {"b", HUGE_VAL}, {"c", -HUGE_VAL}, {"d", 0.1}});
    report.log_text("note", "<a> \"quoted\" \xFF", {.update = 1});
    report.log_histogram("weight", at::tensor({0.1, 0.7, kNaN}), {.update = 1});
  };
  const TrackedRun resume = {.config = {{"x", "1"}}, .first_update = 1};
  HtmlReport first(path_);
  first.start(resume);
  log_all(first);
  first.finish("finished", {});
  const std::string before = page();

  HtmlReport second(path_);
  second.start(resume);
  second.finish("finished", {});

  EXPECT_EQ(page(), before);
}

TEST_F(HtmlReportTest, KeepsTheNewestHistogramOfEachNameUntilANewRun) {
  report_.start({});
  for (int64_t update = 1; update <= 3; ++update) {
    report_.log_histogram("weight", at::ones({2}), {.update = update});
  }
  report_.finish("finished", {});
  EXPECT_THAT(page(), HasSubstr("\"update\":3,\"name\":\"weight\""));
  EXPECT_THAT(page(), Not(HasSubstr("\"update\":2,\"name\":\"weight\"")));
  report_.start({});
  EXPECT_THAT(page(), Not(HasSubstr("weight\"")));
}

TEST_F(HtmlReportTest, RefusesAForeignOrDamagedFileWithoutChangingIt) {
  report_.start({});
  log(report_, 77, 1, {{"loss", 1.0}});
  report_.log_histogram("weight", at::tensor({0.1, 0.7}), {.update = 1});
  report_.finish("finished", {});
  const std::string whole = page();
  const auto replaced = [&](const std::string& part, const std::string& replacement) {
    std::string text = whole;
    return text.replace(text.find(part), part.size(), replacement);
  };
  for (const std::string& text :
       {std::string("<html></html>"), replaced("\"update\"", "\"updade\""),
        replaced("\"type\"", "\"tipe\""), replaced("\"update\":1", "\"update\":1e300"),
        replaced("</script>", "<script>"), whole.substr(0, whole.find("\"outcome\""))}) {
    write_bytes(path_, text);
    EXPECT_ERROR(HtmlReport(path_).start({.first_update = 1}),
                 "report.html\" is not a page that HtmlReport wrote");
    EXPECT_EQ(page(), text);
  }
}

/// The clock advances by a second each time it is read, so each write of the page takes a second.
class SlowReport : public HtmlReport {
 public:
  using HtmlReport::HtmlReport;

 protected:
  std::chrono::steady_clock::time_point now() const override {
    return time_ += std::chrono::seconds(1);
  }

 private:
  mutable std::chrono::steady_clock::time_point time_;
};

TEST_F(HtmlReportTest, ASlowPageIsWrittenLessOften) {
  SlowReport report(path_, {.seconds_between_writes = 0.5});
  report.start({});
  log(report, 1, 1, {{"loss", 1.0}});
  const std::string before = page();
  for (int second = 1; second < 20; ++second) {
    report.flush();
    EXPECT_EQ(page(), before) << second;
  }
  report.flush();
  EXPECT_NE(page(), before);
}

TEST_F(HtmlReportTest, AFullDiskAtTheEndKeepsThePreviousPage) {
  report_.start({});
  const std::string before = page();
  log_updates(report_, 1, 12);
  {
    const FileSizeLimit limit(1000);
    EXPECT_ERROR(report_.finish("finished", {}), "report.html\" (File too large)");
  }
  EXPECT_EQ(page(), before);
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"report.html"});
}

TEST_F(HtmlReportTest, RejectsANegativeInterval) {
  EXPECT_ERROR((HtmlReport(path_, {.seconds_between_writes = -1.0})),
               "seconds_between_writes is -1");
  EXPECT_ERROR((HtmlReport(path_, {.seconds_between_writes = kNaN})), "seconds_between_writes");
}

}  // namespace
}  // namespace linkboy::testing::html_report_test
