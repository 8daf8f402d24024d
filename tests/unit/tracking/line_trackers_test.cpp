// Tests of the records that CsvTracker and JsonLinesTracker keep when a run resumes, when the next
// run starts, and after a crash has damaged their files.

#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "linkboy/tracking/tracker_factory.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::line_trackers_test {
namespace {

constexpr char kHeader[] = "time,epoch,update,name,value\n";

struct Format {
  std::string tracker;
  /// The first line.
  std::string header{};
  /// Parts of a record after which a killed run ended the file.
  std::vector<std::string> truncated;
  /// Lines that are not complete records.
  std::vector<std::string> damaged;
  std::vector<std::string> foreign_files;
  std::string refusal;
};

void PrintTo(const Format& format, std::ostream* stream) { *stream << format.tracker; }

const Format kCsv{.tracker = "csv",
                  .header = kHeader,
                  .truncated = {"1000.5,3,11,los", "1000.5,3,11,\"a\nb", "1"},
                  .damaged = {std::string(100, '\0'), "lo"},
                  .foreign_files = {"a,b\n1,2\n", std::string(kHeader) + "1,x,2,loss,3\n",
                                    std::string(kHeader) + "no comma\n", "notes"},
                  .refusal = "run\" is not a table that CsvTracker wrote"};

const Format kJsonLines{
    .tracker = "json-lines",
    .truncated = {R"({"type":"scalars","time":1.5,"epo)"},
    .damaged = {std::string(100, '\0'), R"({"type":"sc)",
                R"({"type":"scalars","update":1e300,"epoch":1})"},
    .foreign_files = {"notes", "notes\n", "{\"type\":\"text\"}\n", "[]\n", "{\"type\":\"run\"}\n"},
    .refusal = "run\" is not a file that JsonLinesTracker wrote"};

const std::string kTenUpdates = "run 1 2 3 4 5 6 7 8 9 10";
const TrackedRun kResumedAtTheEnd{.first_update = 10, .first_epoch = 2};

class LineTrackerTest : public ::testing::TestWithParam<Format> {
 protected:
  std::shared_ptr<Tracker> make(bool append = false) const {
    return make_tracker(GetParam().tracker,
                        {{"path", path_.string()}, {"append", append ? "true" : "false"}});
  }

  static void log(Tracker& tracker, int64_t update) {
    const TrackedScalar scalar{"loss", 1.0 / static_cast<double>(update)};
    tracker.log_scalars({&scalar, 1},
                        {.update = update, .epoch = (update - 1) / 4 + 1, .seconds = 1000.5});
  }

  /// Records a run of ten updates, in epochs of four.
  static void record_run(Tracker& tracker) {
    tracker.start({});
    for (int64_t update = 1; update <= 10; ++update) log(tracker, update);
  }

  /// Records such a run without `finish`.
  void killed_run() const { record_run(*make()); }

  /// Expects records with these updates. "run" and "end" are lines that only JsonLinesTracker adds.
  void expect_records(std::string expected) const {
    const std::string text = read_bytes(path_);
    EXPECT_TRUE(text.starts_with(GetParam().header) && text.ends_with('\n')) << text;
    const std::regex entry(R"_((?:^[^,{]+,\d+,|"update":|"type":")(\d+|run|end)\b)_");
    std::istringstream lines(text);
    std::string records;
    for (std::string line; std::getline(lines, line);) {
      std::smatch match;
      if (std::regex_search(line, match, entry)) records += " " + match.str(1);
    }
    expected = " " + expected;
    if (GetParam().tracker == "csv") {
      expected = std::regex_replace(expected, std::regex(" (run|end)"), "");
    }
    EXPECT_EQ(records, expected) << text;
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "new" / "run";
};

INSTANTIATE_TEST_SUITE_P(Formats, LineTrackerTest, ::testing::Values(kCsv, kJsonLines),
                         [](const auto& info) {
                           return info.param.tracker == "csv" ? "Csv" : "JsonLines";
                         });

TEST_P(LineTrackerTest, ReplacesTheFileWhenTheNextRunStarts) {
  killed_run();
  const auto tracker = make();
  expect_records(kTenUpdates);
  tracker->start({});
  expect_records("run");
}

TEST_P(LineTrackerTest, AppendsRunsOnRequest) {
  const auto tracker = make(/*append=*/true);
  for (const int64_t update : {1, 7}) {
    tracker->start({});
    log(*tracker, update);
    tracker->finish("finished", {});
  }
  expect_records("run 1 end run 7 end");
}

TEST_P(LineTrackerTest, KeepsTheRecordsBeforeTheTrainingState) {
  killed_run();
  const auto tracker = make();
  for (int attempt = 0; attempt < 2; ++attempt) {
    tracker->start({.first_update = 4, .first_epoch = 1});
    log(*tracker, 5);
    expect_records("run 1 2 3 4 run 5");
  }
}

TEST_P(LineTrackerTest, ARunResumedInItsFirstUpdateKeepsTheRecordsBeforeIt) {
  const auto tracker = make();
  tracker->start({});
  log(*tracker, 0);
  log(*tracker, 1);
  tracker->start({.is_resumed = true});
  expect_records("run 0 run");
}

TEST_P(LineTrackerTest, ARunResumedAfterItsEndHasOneEnd) {
  const auto tracker = make();
  record_run(*tracker);
  tracker->finish("max_steps", {});
  tracker->start(kResumedAtTheEnd);
  log(*tracker, 11);
  tracker->finish("finished", {});
  expect_records(kTenUpdates + " run 11 end");
}

TEST_P(LineTrackerTest, KeepsRunsBeforeTheResumedOne) {
  const auto tracker = make(/*append=*/true);
  record_run(*tracker);
  tracker->finish("finished", {});
  tracker->start({});
  log(*tracker, 3);
  tracker->start({.first_update = 2});
  expect_records(kTenUpdates + " end run run");
}

TEST_P(LineTrackerTest, AResumedRunWithoutAFileStartsOne) {
  make()->start({.first_update = 4});
  expect_records("run");
}

TEST_P(LineTrackerTest, DropsRecordsThatAPowerCutDamaged) {
  killed_run();
  const std::string before = read_bytes(path_);
  const std::size_t middle = before.find('\n', before.size() / 2) + 1;
  for (const std::string& damage : GetParam().damaged) {
    for (const std::size_t position : {middle, before.size()}) {
      SCOPED_TRACE(c10::str(damage, " at ", position));
      write_bytes(path_, before.substr(0, position) + damage + "\n" + before.substr(position));
      make()->start(kResumedAtTheEnd);
      expect_records(kTenUpdates + " run");
      EXPECT_TRUE(read_bytes(path_).starts_with(before));
    }
  }
}

TEST_P(LineTrackerTest, DropsATruncatedRecord) {
  for (const std::string& torn : GetParam().truncated) {
    for (const bool append : {false, true}) {
      SCOPED_TRACE(c10::str(torn, append ? " before an appended run" : ""));
      killed_run();
      write_bytes(path_, read_bytes(path_) + torn);
      const auto tracker = make(append);
      tracker->start(append ? TrackedRun{} : kResumedAtTheEnd);
      log(*tracker, 11);
      expect_records(kTenUpdates + " run 11");
    }
  }
}

TEST_P(LineTrackerTest, RefusesAForeignFileWithoutChangingIt) {
  std::filesystem::create_directory(path_.parent_path());
  for (const std::string& text : GetParam().foreign_files) {
    SCOPED_TRACE(text);
    write_bytes(path_, text);
    EXPECT_ERROR(make()->start({}), GetParam().refusal);
    EXPECT_EQ(read_bytes(path_), text);
  }
}

}  // namespace
}  // namespace linkboy::testing::line_trackers_test
