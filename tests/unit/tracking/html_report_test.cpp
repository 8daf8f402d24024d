// Tests of HtmlReport: the page, read by Python's parsers, and the records that a resumed run
// keeps.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
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

using ::testing::HasSubstr;
using ::testing::Not;

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
  HtmlReport report_{path_};
};

TEST_F(HtmlReportTest, ContainsAPointForEveryRecord) {
  SKIP_WITHOUT_PYTHON();
  report_.start({.name = "run", .config = {{"lr", "0.1"}}, .environment = {{"device", "cpu"}}});
  log_updates(report_, 1, 12);
  for (int64_t update = 1; update <= 2000; ++update) {
    log(report_, update, 1, {{"accuracy", update == 731 ? kNaN : std::sin(update / 300.0)}});
  }
  report_.log_histogram("weight", at::arange(100.0), {});
  report_.log_text("note", "text", {});
  report_.finish("finished", {});

  EXPECT_EQ(outline(),
            "train_loss 12 12 12 12 0\n"
            "lr 12 12 12 12 0\n"
            "train_loss_epoch 3 3 3 3 0\n"
            "eval_loss_epoch 3 3 3 3 0\n"
            "accuracy 2000 2000 1999 100 1\n"
            "text note\n");
}

TEST_F(HtmlReportTest, ContainsNoReferencesAndNoCode) {
  report_.start({});
  log_updates(report_, 1, 12);
  report_.finish("finished", {});

  EXPECT_THAT(page(), Not(HasSubstr("http")));
  EXPECT_EQ(count(page(), "<script"), 1U);
  EXPECT_EQ(count(page(), "<script type=\"application/json\""), 1U);
}

TEST_F(HtmlReportTest, EscapesEveryText) {
  SKIP_WITHOUT_PYTHON();
  const std::string evil = "</script><script>alert('1 & \"2\"')</script><a href=http:x>";
  report_.start({.name = evil, .config = {{evil, evil}}, .environment = {{evil, evil}}});
  log(report_, 1, 1, {{evil, 1.0}});
  report_.log_text(evil, evil, {});
  report_.log_histogram(evil, at::ones({3}), {});
  report_.finish(evil, {});

  EXPECT_EQ(outline(), evil + " 1 1 1 1 0\ntext " + evil + "\n");
}

TEST_F(HtmlReportTest, CharactersThatXmlDoesNotAllowAreReplaced) {
  SKIP_WITHOUT_PYTHON();
  report_.start({.name = "bell \x07 byte \xFF and \xEF\xBF\xBF"});
  report_.log_histogram("bell \x07 byte \xFF and \xEF\xBF\xBF", at::ones({3}), {});
  report_.finish("finished", {});

  EXPECT_EQ(outline(), "");
  EXPECT_THAT(page(), HasSubstr("<h1>bell \xEF\xBF\xBD byte \xEF\xBF\xBD and \xEF\xBF\xBD</h1>"));
}

TEST_F(HtmlReportTest, ShowsLastLowestAndHighestValues) {
  report_.start({});
  log(report_, 10, 1, {{"loss", 3.5}});
  log(report_, 20, 2, {{"loss", 0.25}});
  log(report_, 30, 3, {{"loss", kNaN}});
  log(report_, 40, 4, {{"loss", 1.5}});
  report_.finish("finished", {});

  EXPECT_THAT(page(),
              HasSubstr("<tr><th>loss</th><td class=\"number\">1.5</td>"
                        "<td class=\"number\">0.25</td><td class=\"at\">epoch 2, update 20</td>"
                        "<td class=\"number\">3.5</td><td class=\"at\">epoch 1, update 10</td>"
                        "<td class=\"number\">4</td></tr>"));
  EXPECT_THAT(page(), HasSubstr("1 of 4 values of loss is not finite, first at update 30."));
}

TEST_F(HtmlReportTest, ShowsOutcomeConfigurationAndEnvironment) {
  report_.start({.config = {{"batch size", "8"}}, .environment = {{"device", "cpu"}}});
  EXPECT_THAT(page(), HasSubstr("running"));
  EXPECT_THAT(page(), HasSubstr("<h1>report</h1>"));

  report_.finish("early_stop", {});

  EXPECT_THAT(page(), HasSubstr("early_stop"));
  EXPECT_THAT(page(), HasSubstr("<tr><th>batch size</th><td>8</td></tr>"));
  EXPECT_THAT(page(), HasSubstr("<tr><th>device</th><td>cpu</td></tr>"));
}

TEST_F(HtmlReportTest, FlushRespectsTheMinimumInterval) {
  for (const double seconds : {0.0, 1e9}) {
    SCOPED_TRACE(seconds);
    HtmlReport report(path_, {.seconds_between_writes = seconds});
    report.start({});
    log(report, 1, 1, {{"loss", 1.0}});
    const auto has_loss = HasSubstr("data-metric=\"loss\" data-points=\"1\"");
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

TEST_F(HtmlReportTest, ANewRunStartsANewPage) {
  report_.start({});
  log_updates(report_, 1, 12);
  report_.finish("finished", {});

  report_.start({});

  EXPECT_THAT(page(), HasSubstr("No metrics are recorded yet"));
  EXPECT_THAT(page(), Not(HasSubstr("train_loss")));
}

TEST_F(HtmlReportTest, RefusesAForeignOrDamagedFileWithoutChangingIt) {
  report_.start({});
  log(report_, 77, 1, {{"loss", 1.0}});
  report_.log_histogram("weight", at::tensor({0.1, 0.7}), {.update = 1});
  report_.finish("finished", {});
  const std::string whole = page();
  const auto replaced = [&](const std::string& part, const std::string& replacement) {
    std::string text = whole;
    return text.replace(text.rfind(part), part.size(), replacement);
  };
  const auto emptied = [&](const std::string& list) {
    std::string text = whole;
    const std::size_t begin = text.rfind("\"" + list + "\":[") + list.size() + 4;
    return text.erase(begin, text.find(']', begin) - begin);
  };
  for (const std::string& text :
       {std::string("<html></html>"), replaced("\"metrics\"", "\"matrics\""),
        replaced("[77]", "[1e300]"), emptied("edges"), emptied("statistics")}) {
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

TEST_F(HtmlReportTest, AMillionInvalidCharactersTakeNoLongerThanOthers) {
  report_.start({});
  std::string text;
  for (int i = 0; i < 1'000'000; ++i) text += "\xEF\xBF\xBF";
  report_.log_text("note", text, {.update = 1});
  report_.finish("finished", {});
  EXPECT_THAT(page(), HasSubstr("\xEF\xBF\xBD\xEF\xBF\xBD"));
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
}  // namespace linkboy::html_report_test
