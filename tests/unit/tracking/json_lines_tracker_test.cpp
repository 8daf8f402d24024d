// Tests of JsonLinesTracker's lines. line_trackers_test.cpp tests the lines that a run keeps.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "linkboy/tracking/json_lines_tracker.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/file_size_limit.hpp"
#include "support/matchers.hpp"
#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::json_lines_tracker_test {
namespace {

constexpr TrackedTime kTime = {.update = 4, .epoch = 2, .seconds = 1000.5};
constexpr char kRunLine[] =
    R"({"type":"run","name":"","first_update":0,"first_epoch":0,"config":{},"environment":{}})";

class JsonLinesTrackerTest : public ::testing::Test {
 protected:
  std::string last_line() const {
    const std::string text = read_bytes(path_);
    EXPECT_TRUE(text.ends_with('\n')) << text;
    const std::size_t begin = text.rfind('\n', text.size() - 2) + 1;
    return text.substr(begin, text.size() - 1 - begin);
  }

  /// Returns the line of these scalars.
  std::string line_of(const std::vector<TrackedScalar>& scalars) {
    tracker_.log_scalars(scalars, kTime);
    return last_line();
  }
  /// Returns the line of a histogram.
  std::string histogram_of(const at::Tensor& values) {
    tracker_.log_histogram("weight", values, kTime);
    return last_line();
  }

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

  EXPECT_EQ(line_of({{"loss", 0.1}, {"lr", 3.0}}),
            R"({"type":"scalars","time":1000.5,"epoch":2,"update":4,)"
            R"("values":{"loss":0.1,"lr":3.0}})");

  tracker_.log_text("note", "two\nlines", kTime);
  EXPECT_EQ(last_line(), R"({"type":"text","time":1000.5,"epoch":2,"update":4,)"
                         R"("name":"note","text":"two\nlines"})");

  tracker_.finish("max_steps", std::vector<TrackedScalar>{{"loss", 0.5}});
  EXPECT_EQ(last_line(), R"({"type":"end","outcome":"max_steps","last":{"loss":0.5}})");
}

TEST_F(JsonLinesTrackerTest, WritesNonFiniteNumbersAsStringsAndReplacesInvalidUtf8) {
  tracker_.start({});
  EXPECT_THAT(line_of({{"a", std::nan("")}, {"b", HUGE_VAL}, {"c", -HUGE_VAL}, {"<\xFF>", 1.0}}),
              HasSubstr("{\"a\":\"NaN\",\"b\":\"Infinity\",\"c\":\"-Infinity\","
                        "\"<\xEF\xBF\xBD>\":1.0}"));
}

TEST_F(JsonLinesTrackerTest, CountsAHistogramInThirtyBins) {
  tracker_.start({});

  // The values 0, 0.5, 1, ..., 30 in two dimensions, and two that are not finite.
  at::Tensor values = at::arange(63).div(2).reshape({7, 9});
  values.index_put_({at::tensor(6), at::tensor(7)}, std::nan(""));
  values.index_put_({at::tensor(6), at::tensor(8)}, std::numeric_limits<double>::infinity());
  const std::string line = histogram_of(values);
  std::string edges = "[0.0";
  std::string counts = "[2";
  for (int i = 1; i <= 30; ++i) edges += "," + std::to_string(i) + ".0";
  for (int i = 1; i < 30; ++i) counts += i == 29 ? ",3" : ",2";  // the last has both edges
  EXPECT_THAT(line, HasSubstr(R"("name":"weight","count":61,"non_finite":2,"min":0.0,"max":30.0,)"
                              R"("mean":15.0,"standard_deviation":8.803)"));
  EXPECT_THAT(line, HasSubstr("\"counts\":" + counts + "]}"));
  const std::size_t begin = line.find("\"edges\":") + 8;
  EXPECT_EQ(line.substr(begin, edges.size() + 1), edges + "]");
}

TEST_F(JsonLinesTrackerTest, WritesHistogramsOfEqualEmptyAndHugeValues) {
  tracker_.start({});
  EXPECT_THAT(histogram_of(at::zeros({5})),
              AllOf(HasSubstr(R"("edges":[-0.5,)"), HasSubstr(",5,")));
  EXPECT_THAT(histogram_of(at::empty({0})),
              HasSubstr(R"("mean":"NaN","standard_deviation":"NaN","edges":[],"counts":[]})"));
  EXPECT_THAT(histogram_of(at::tensor({-1.7e308, 1.7e308}, at::kDouble)),
              AllOf(HasSubstr(R"("counts":[1,0,)"), HasSubstr(",0,1]}")));
  EXPECT_THAT(histogram_of(at::ones({3}, at::kBFloat16)), HasSubstr(R"("count":3)"));
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
  const std::string text = read_bytes(path_);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2 * 2 * kRuns);
}

TEST_F(JsonLinesTrackerTest, AFullDiskIsAnErrorForEveryKindOfRecord) {
  tracker_.start({});
  {
    const FileSizeLimit limit(read_bytes(path_).size() + 10);
    EXPECT_ERROR(tracker_.log_text("note", "text", kTime), "run.jsonl\" (File too large)");
    EXPECT_ERROR(tracker_.log_histogram("weight", at::ones({2}), kTime), "(File too large)");
    EXPECT_ERROR(tracker_.finish("failed", {}), "(File too large)");
  }
  EXPECT_EQ(read_bytes(path_), std::string(kRunLine) + "\n");
}

TEST_F(JsonLinesTrackerTest, PythonReadsEveryLine) {
  SKIP_WITHOUT_PYTHON();
  tracker_.start({});
  line_of({{"a", std::nan("")}, {"b\n\"", 1.0 / 3.0}});
  histogram_of(at::ones({2}));
  tracker_.finish("finished", {});

  const std::string lines = run_python("report_peer.py", {"json", path_.string()});

  EXPECT_THAT(lines, HasSubstr(R"("values": {"a": "NaN", "b\n\"": 0.3333333333333333}})"));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 4);
}

}  // namespace
}  // namespace linkboy::testing::json_lines_tracker_test
