// Tests of HtmlReport: the page, read by Python's parsers, and the records that a resumed run
// keeps.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "linkboy/tracking/html_report.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/file_size_limit.hpp"
#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::html_report_test {
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

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t result = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++result;
  return result;
}

class HtmlReportTest : public ::testing::Test {
 protected:
  std::string page() const { return read_bytes(path_); }

  /// Returns an outline of the page as Python's parsers read it.
  std::string outline() const { return run_python("report_peer.py", {"html", path_.string()}); }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "report.html";
};

TEST_F(HtmlReportTest, ContainsAPointForEveryRecord) {
  SKIP_WITHOUT_PYTHON();
  HtmlReport report(path_);
  report.start({.name = "run", .config = {{"lr", "0.1"}}, .environment = {{"device", "cpu"}}});
  log_updates(report, 1, 12);
  for (int64_t update = 1; update <= 2000; ++update) {
    log(report, update, 1, {{"accuracy", update == 731 ? kNaN : std::sin(update / 300.0)}});
  }
  report.log_histogram("weight", at::arange(100.0), {});
  report.log_text("note", "text", {});
  report.finish("finished", {});

  EXPECT_EQ(outline(),
            "train_loss 12 12 12 12 0\n"
            "lr 12 12 12 12 0\n"
            "train_loss_epoch 3 3 3 3 0\n"
            "eval_loss_epoch 3 3 3 3 0\n"
            "accuracy 2000 2000 1999 100 1\n"
            "text note\n");
}

TEST_F(HtmlReportTest, ContainsNoReferencesAndNoCode) {
  HtmlReport report(path_);
  report.start({});
  log_updates(report, 1, 12);
  report.finish("finished", {});

  EXPECT_EQ(page().find("http"), std::string::npos);
  EXPECT_EQ(count(page(), "<script"), 1U);
  EXPECT_EQ(count(page(), "<script type=\"application/json\""), 1U);
}

TEST_F(HtmlReportTest, EscapesEveryText) {
  SKIP_WITHOUT_PYTHON();
  const std::string evil = "</script><script>alert('1 & \"2\"')</script><a href=http:x>";
  HtmlReport report(path_);
  report.start({.name = evil, .config = {{evil, evil}}, .environment = {{evil, evil}}});
  log(report, 1, 1, {{evil, 1.0}});
  report.log_text(evil, evil, {});
  report.log_histogram(evil, at::ones({3}), {});
  report.finish(evil, {});

  EXPECT_EQ(outline(), evil + " 1 1 1 1 0\ntext " + evil + "\n");
}

TEST_F(HtmlReportTest, CharactersThatXmlDoesNotAllowAreReplaced) {
  SKIP_WITHOUT_PYTHON();
  HtmlReport report(path_);
  report.start({.name = "bell \x07 byte \xFF and \xEF\xBF\xBF"});
  report.log_histogram("bell \x07 byte \xFF and \xEF\xBF\xBF", at::ones({3}), {});
  report.finish("finished", {});

  EXPECT_EQ(outline(), "");
  EXPECT_NE(page().find("<h1>bell \xEF\xBF\xBD byte \xEF\xBF\xBD and \xEF\xBF\xBD</h1>"),
            std::string::npos);
}

TEST_F(HtmlReportTest, ShowsLastLowestAndHighestValues) {
  HtmlReport report(path_);
  report.start({});
  log(report, 10, 1, {{"loss", 3.5}});
  log(report, 20, 2, {{"loss", 0.25}});
  log(report, 30, 3, {{"loss", kNaN}});
  log(report, 40, 4, {{"loss", 1.5}});
  report.finish("finished", {});

  EXPECT_NE(page().find("<tr><th>loss</th><td class=\"number\">1.5</td>"
                        "<td class=\"number\">0.25</td><td class=\"at\">epoch 2, update 20</td>"
                        "<td class=\"number\">3.5</td><td class=\"at\">epoch 1, update 10</td>"
                        "<td class=\"number\">4</td></tr>"),
            std::string::npos);
  EXPECT_NE(page().find("1 of 4 values of loss is not finite, first at update 30."),
            std::string::npos);
}

TEST_F(HtmlReportTest, ShowsOutcomeConfigurationAndEnvironment) {
  HtmlReport report(path_);
  report.start({.config = {{"batch size", "8"}}, .environment = {{"device", "cpu"}}});
  EXPECT_NE(page().find("running"), std::string::npos);
  EXPECT_NE(page().find("<h1>report</h1>"), std::string::npos);

  report.finish("early_stop", {});

  EXPECT_NE(page().find("early_stop"), std::string::npos);
  EXPECT_NE(page().find("<tr><th>batch size</th><td>8</td></tr>"), std::string::npos);
  EXPECT_NE(page().find("<tr><th>device</th><td>cpu</td></tr>"), std::string::npos);
}

TEST_F(HtmlReportTest, FlushRespectsTheMinimumInterval) {
  HtmlReport rare(path_, {.seconds_between_writes = 1e9});
  rare.start({});
  const std::string before = page();
  log(rare, 1, 1, {{"loss", 1.0}});

  rare.flush();
  EXPECT_EQ(page(), before);

  rare.finish("finished", {});
  EXPECT_NE(page(), before);
}

TEST_F(HtmlReportTest, FlushAlwaysWritesWithoutAMinimumInterval) {
  HtmlReport report(path_, {.seconds_between_writes = 0.0});
  report.start({});
  log(report, 1, 1, {{"loss", 1.0}});

  report.flush();

  EXPECT_NE(page().find("data-metric=\"loss\" data-points=\"1\""), std::string::npos);
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

TEST_F(HtmlReportTest, ANewRunStartsANewPage) {
  HtmlReport report(path_);
  report.start({});
  log_updates(report, 1, 12);
  report.finish("finished", {});

  report.start({});

  EXPECT_NE(page().find("No metrics are recorded yet"), std::string::npos);
  EXPECT_EQ(page().find("train_loss"), std::string::npos);
}

TEST_F(HtmlReportTest, RefusesAForeignFileWithoutChangingIt) {
  HtmlReport report(path_);
  report.start({});
  report.finish("finished", {});
  std::string damaged = page();
  damaged.replace(damaged.find("\"metrics\""), 9, "\"matrics\"");
  for (const std::string& text : {std::string("<html></html>"), damaged}) {
    write_bytes(path_, text);

    EXPECT_ERROR(HtmlReport(path_).start({}), "report.html\" is not a page that HtmlReport wrote");

    EXPECT_EQ(page(), text);
  }
}

TEST_F(HtmlReportTest, ASecondRunIsRefusedWhileTheFirstOneWrites) {
  HtmlReport first(path_, {.seconds_between_writes = 0.0});
  first.start({});
  HtmlReport second(path_);
  for (int64_t update = 1; update <= 3; ++update) {  // each flush replaces the file
    log(first, update, 1, {{"loss", 1.0}});
    first.flush();
    const std::string before = page();
    EXPECT_ERROR(second.start({}), "is being written by another run");
    EXPECT_EQ(page(), before);
  }
  first.finish("finished", {});
  second.start({});
}

TEST_F(HtmlReportTest, RefusesAPageWithInvalidIntegers) {
  HtmlReport report(path_);
  report.start({});
  log(report, 77, 1, {{"loss", 1.0}});
  report.finish("finished", {});
  std::string damaged = page();
  damaged.replace(damaged.find("[77]"), 4, "[1e300]");
  write_bytes(path_, damaged);
  EXPECT_ERROR(HtmlReport(path_).start({}), "is not a page that HtmlReport wrote");
}

TEST_F(HtmlReportTest, RefusesAHistogramWhoseEdgesWereRemoved) {
  HtmlReport report(path_);
  report.start({});
  report.log_histogram("weight", at::tensor({0.1, 0.7}), {.update = 1});
  report.finish("finished", {});
  for (const std::string key : {"edges", "statistics"}) {
    std::string edited = page();
    const std::size_t begin = edited.rfind("\"" + key + "\":[") + key.size() + 4;
    edited.erase(begin, edited.find(']', begin) - begin);
    const std::string before = page();
    write_bytes(path_, edited);
    EXPECT_ERROR(HtmlReport(path_).start({.first_update = 1}),
                 "is not a page that HtmlReport wrote");
    write_bytes(path_, before);
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

TEST_F(HtmlReportTest, AMillionInvalidCharactersTakeNoLongerThanOthers) {
  HtmlReport report(path_);
  report.start({});
  std::string text;
  for (int i = 0; i < 1'000'000; ++i) text += "\xEF\xBF\xBF";
  report.log_text("note", text, {.update = 1});
  report.finish("finished", {});
  EXPECT_NE(page().find("\xEF\xBF\xBD\xEF\xBF\xBD"), std::string::npos);
}

TEST_F(HtmlReportTest, RefusesUnwritablePaths) {
  write_bytes(folder_ / "file", "text");

  EXPECT_ERROR(HtmlReport(folder_ / "file" / "report.html").start({}), "report.html");
  EXPECT_ERROR(HtmlReport(folder_.path()).start({}), "is not a regular file");

  EXPECT_EQ(folder_.names(), std::vector<std::string>{"file"});
}

TEST_F(HtmlReportTest, AFullDiskKeepsThePreviousPage) {
  HtmlReport report(path_, {.seconds_between_writes = 0.0});
  report.start({});
  const std::string before = page();
  log_updates(report, 1, 12);

  {
    const FileSizeLimit limit(1000);
    EXPECT_ERROR(report.flush(), "report.html\" (File too large)");
    EXPECT_ERROR(report.finish("finished", {}), "report.html\" (File too large)");
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
}  // namespace linkboy::html_report_test
