// Tests of JsonLinesTracker: the lines, the lines that a resumed run keeps, and files that cannot
// be written.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "linkboy/tracking/json_lines_tracker.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/file_size_limit.hpp"
#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::json_lines_tracker_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr TrackedTime kTime = {.update = 4, .epoch = 2, .seconds = 1000.5};
constexpr char kRunLine[] =
    R"({"type":"run","name":"","first_update":0,"first_epoch":0,"config":{},"environment":{}})";

void log(JsonLinesTracker& tracker, int64_t update, std::vector<TrackedScalar> scalars) {
  tracker.log_scalars(scalars, {.update = update, .epoch = (update - 1) / 4 + 1, .seconds = 1.5});
}

/// The `outline` of `record_run`.
const std::string kTenUpdates = "run 1 2 3 4 5 6 7 8 9 10";

/// Records a run of ten updates, in epochs of four.
void record_run(JsonLinesTracker& tracker) {
  tracker.start({});
  for (int64_t update = 1; update <= 10; ++update) log(tracker, update, {{"loss", 1.0}});
}

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  const std::string text = read_bytes(path);
  for (std::size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    if (end == text.npos) return {"cut off"};
    lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

/// Returns the types of all lines, with the update instead of the type for scalars: "run 1 2 end".
std::string outline(const std::filesystem::path& path) {
  std::string result;
  for (const std::string& line : lines_of(path)) {
    const std::string update_field = "\"update\":";
    const std::size_t update = line.find(update_field);
    if (!result.empty()) result += ' ';
    result += update == line.npos ? line.substr(9, line.find('"', 9) - 9)
                                  : std::to_string(std::stoi(line.substr(update + 9)));
  }
  return result;
}

class JsonLinesTrackerTest : public ::testing::Test {
 protected:
  std::string last_line() const { return lines_of(path_).back(); }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "run.jsonl";
  JsonLinesTracker tracker_{path_};
};

TEST_F(JsonLinesTrackerTest, StartsWithTheRun) {
  tracker_.start({.name = "first \"try\"",
                  .config = {{"lr", "0.1"}, {"b", "x"}},
                  .environment = {{"device", "cpu"}}});

  EXPECT_EQ(last_line(), R"({"type":"run","name":"first \"try\"","first_update":0,"first_epoch":0,)"
                         R"("config":{"lr":"0.1","b":"x"},"environment":{"device":"cpu"}})");
}

TEST_F(JsonLinesTrackerTest, WritesALineForEachCallImmediately) {
  tracker_.start({});

  tracker_.log_scalars(std::vector<TrackedScalar>{{"loss", 0.1}, {"lr", 3.0}}, kTime);
  EXPECT_EQ(last_line(), R"({"type":"scalars","time":1000.5,"epoch":2,"update":4,)"
                         R"("values":{"loss":0.1,"lr":3.0}})");

  tracker_.log_text("note", "two\nlines", kTime);
  EXPECT_EQ(last_line(), R"({"type":"text","time":1000.5,"epoch":2,"update":4,)"
                         R"("name":"note","text":"two\nlines"})");

  tracker_.finish("max_steps", std::vector<TrackedScalar>{{"loss", 0.5}});
  EXPECT_EQ(last_line(), R"({"type":"end","outcome":"max_steps","last":{"loss":0.5}})");
}

TEST_F(JsonLinesTrackerTest, WritesNonFiniteNumbersAsStrings) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  tracker_.start({});

  log(tracker_, 1, {{"a", std::nan("")}, {"b", kInfinity}, {"c", -kInfinity}});

  EXPECT_THAT(last_line(), HasSubstr(R"({"a":"NaN","b":"Infinity","c":"-Infinity"})"));
}

TEST_F(JsonLinesTrackerTest, ReplacesInvalidUtf8) {
  tracker_.start({});

  tracker_.log_text("note", "<\xFF>", kTime);

  EXPECT_THAT(last_line(), HasSubstr("<\xEF\xBF\xBD>"));
}

TEST_F(JsonLinesTrackerTest, CountsAHistogramInThirtyBins) {
  tracker_.start({});

  // The values 0, 0.5, 1, ..., 30 in two dimensions, and two that are not finite.
  at::Tensor values = at::arange(63).div(2).reshape({7, 9});
  values.index_put_({at::tensor(6), at::tensor(7)}, std::nan(""));
  values.index_put_({at::tensor(6), at::tensor(8)}, std::numeric_limits<double>::infinity());
  tracker_.log_histogram("weight", values, kTime);

  std::string edges = "[0.0";
  std::string counts = "[2";
  for (int i = 1; i <= 30; ++i) edges += "," + std::to_string(i) + ".0";
  for (int i = 1; i < 30; ++i) counts += i == 29 ? ",3" : ",2";  // the last has both edges
  const std::string line = last_line();
  EXPECT_THAT(line, HasSubstr(R"("name":"weight","count":61,"non_finite":2,"min":0.0,"max":30.0,)"
                              R"("mean":15.0,"standard_deviation":8.803)"));
  EXPECT_THAT(line, HasSubstr("\"counts\":" + counts + "]}"));
  const std::size_t begin = line.find("\"edges\":") + 8;
  EXPECT_EQ(line.substr(begin, edges.size() + 1), edges + "]");
}

TEST_F(JsonLinesTrackerTest, WritesHistogramsOfEqualEmptyAndHugeValues) {
  tracker_.start({});

  tracker_.log_histogram("zeros", at::zeros({5}), kTime);
  EXPECT_THAT(last_line(), AllOf(HasSubstr(R"("edges":[-0.5,)"), HasSubstr(",5,")));

  tracker_.log_histogram("none", at::empty({0}), kTime);
  EXPECT_THAT(last_line(),
              HasSubstr(R"("mean":"NaN","standard_deviation":"NaN","edges":[],"counts":[]})"));

  tracker_.log_histogram("huge", at::tensor({-1.7e308, 1.7e308}, at::kDouble), kTime);
  EXPECT_THAT(last_line(), AllOf(HasSubstr(R"("counts":[1,0,)"), HasSubstr(",0,1]}")));

  tracker_.log_histogram("half", at::ones({3}, at::kBFloat16), kTime);
  EXPECT_THAT(last_line(), HasSubstr(R"("count":3)"));
}

TEST_F(JsonLinesTrackerTest, ReplacesTheFileWhenTheNextRunStarts) {
  record_run(tracker_);
  EXPECT_EQ(outline(path_), kTenUpdates);

  tracker_.start({});

  EXPECT_EQ(outline(path_), "run");
}

TEST_F(JsonLinesTrackerTest, AppendsRunsOnRequest) {
  JsonLinesTracker tracker(path_, {.append = true});
  for (int i = 0; i < 2; ++i) {
    tracker.start({});
    log(tracker, 1, {{"loss", 1.0}});
    tracker.finish("finished", {});
  }

  EXPECT_EQ(outline(path_), "run 1 end run 1 end");
}

TEST_F(JsonLinesTrackerTest, KeepsTheLinesBeforeTheTrainingState) {
  record_run(tracker_);

  tracker_.start({.first_update = 4, .first_epoch = 1});
  log(tracker_, 5, {{"loss", 1.0}});
  tracker_.start({.first_update = 4, .first_epoch = 1});
  log(tracker_, 5, {{"loss", 1.0}});

  EXPECT_EQ(outline(path_), "run 1 2 3 4 run 5");
}

TEST_F(JsonLinesTrackerTest, ARunResumedAfterItsEndHasOneEnd) {
  record_run(tracker_);
  tracker_.finish("max_steps", {});

  tracker_.start({.first_update = 10, .first_epoch = 2});
  log(tracker_, 11, {{"loss", 1.0}});
  tracker_.finish("finished", {});

  EXPECT_EQ(outline(path_), kTenUpdates + " run 11 end");
}

TEST_F(JsonLinesTrackerTest, KeepsRunsBeforeTheResumedOne) {
  JsonLinesTracker tracker(path_, {.append = true});
  record_run(tracker);
  tracker.finish("finished", {});
  tracker.start({});
  log(tracker, 3, {{"loss", 1.0}});

  tracker.start({.first_update = 2});

  EXPECT_EQ(outline(path_), kTenUpdates + " end run run");
}

TEST_F(JsonLinesTrackerTest, DropsLinesThatAPowerCutDamaged) {
  record_run(tracker_);
  const std::string before = read_bytes(path_);
  const std::size_t middle = before.find('\n', before.size() / 2) + 1;
  for (const std::string& damage :
       {std::string(100, '\0') + "\n", std::string("{\"type\":\"sc\n")}) {
    write_bytes(path_, before.substr(0, middle) + damage + before.substr(middle));
    tracker_.start({.first_update = 10, .first_epoch = 2});
    EXPECT_EQ(outline(path_), kTenUpdates + " run");
  }
}

TEST_F(JsonLinesTrackerTest, DropsLinesWithInvalidIntegers) {
  JsonLinesTracker killed(path_);
  record_run(killed);
  killed.finish("finished", {});
  const std::string before = outline(path_);
  write_bytes(path_, read_bytes(path_) + R"({"type":"scalars","update":1e300,"epoch":1})" + "\n");
  JsonLinesTracker(path_, {.append = true}).start({});
  EXPECT_EQ(outline(path_), before + " run");
}

TEST_F(JsonLinesTrackerTest, RunsThatAppendAtTheSameTimeLoseNoLines) {
  constexpr int kRuns = 150;
  const auto append_runs = [this] {
    for (int num_done = 0; num_done < kRuns;) {
      try {
        JsonLinesTracker tracker(path_, {.append = true});
        tracker.start({});
        tracker.finish("finished", {});
        ++num_done;
      } catch (const Error&) {
        std::this_thread::yield();  // the other run is writing
      }
    }
  };
  std::thread other(append_runs);
  append_runs();
  other.join();
  EXPECT_EQ(lines_of(path_).size(), 2U * 2U * kRuns);
}

TEST_F(JsonLinesTrackerTest, DropsATruncatedLine) {
  record_run(tracker_);
  write_bytes(path_, read_bytes(path_) + R"({"type":"scalars","time":1.5,"epo)");

  tracker_.start({.first_update = 10, .first_epoch = 2});
  log(tracker_, 11, {{"loss", 1.0}});

  EXPECT_EQ(outline(path_), kTenUpdates + " run 11");
}

TEST_F(JsonLinesTrackerTest, RefusesAForeignFileWithoutChangingIt) {
  for (const std::string text :
       {"notes", "notes\n", "{\"type\":\"text\"}\n", "[]\n", "{\"type\":\"run\"}\n"}) {
    write_bytes(path_, text);
    JsonLinesTracker tracker(path_);

    EXPECT_ERROR(tracker.start({}), "JsonLinesTracker wrote");

    EXPECT_EQ(read_bytes(path_), text);
  }
}

TEST_F(JsonLinesTrackerTest, AFullDiskIsAnErrorForEveryKindOfRecord) {
  tracker_.start({});
  {
    const FileSizeLimit limit(read_bytes(path_).size() + 10);
    EXPECT_ERROR(tracker_.log_text("note", "text", kTime), "run.jsonl\" (File too large)");
    EXPECT_ERROR(tracker_.log_histogram("weight", at::ones({2}), kTime), "(File too large)");
    EXPECT_ERROR(tracker_.finish("failed", {}), "(File too large)");
  }
  EXPECT_EQ(lines_of(path_), std::vector<std::string>{kRunLine});
}

TEST_F(JsonLinesTrackerTest, PythonReadsEveryLine) {
  SKIP_WITHOUT_PYTHON();
  tracker_.start({});
  log(tracker_, 1, {{"a", std::nan("")}, {"b\n\"", 1.0 / 3.0}});
  tracker_.log_histogram("weight", at::ones({2}), kTime);
  tracker_.finish("finished", {});

  const std::string lines = run_python("report_peer.py", {"json", path_.string()});

  EXPECT_THAT(lines, HasSubstr(R"("values": {"a": "NaN", "b\n\"": 0.3333333333333333}})"));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 4);
}

}  // namespace
}  // namespace linkboy::json_lines_tracker_test
