// Tests of event files, which TensorBoard reads back.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "linkboy/tracking/tensorboard_tracker.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"
#include "tracking/event_file.hpp"
#include "tracking/histogram.hpp"

namespace linkboy::testing::tensorboard_tracker_test {
namespace {

using nlohmann::json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

json read_back(const std::filesystem::path& logdir, const std::string& run = "run-1") {
  return run_python_json("tensorboard_peer.py", {logdir.string(), run});
}

std::vector<std::filesystem::path> event_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TrackedTime at_update(int64_t update) { return {.update = update, .seconds = 1000.0 + update}; }

void log_loss(Tracker& tracker, int64_t update, double value) {
  const TrackedScalar scalar{"loss", value};
  tracker.log_scalars({&scalar, 1}, at_update(update));
}

/// Returns [[step, value as printed by Python], ...].
json steps_and_values(const json& scalar) {
  json result = json::array();
  for (const auto& event : scalar) result.push_back({event[0], event[1]});
  return result;
}

TEST(EventFileTest, ARecordHasItsLengthAndMaskedChecksums) {
  // RecordWriter of TensorBoard 2.21.0 (tensorboard.summary.writer.record_writer) wrote this record
  // for b"123456789".
  const std::string expected(
      "\x09\0\0\0\0\0\0\0"
      "\x37\xf9\x71\x39"
      "123456789"
      "\xe5\xb0\x8a\xc7",
      25);
  EXPECT_EQ(tf_record("123456789"), expected);
}

TEST(HistogramTest, CountsEachElementInItsBucket) {
  const auto values = torch::randn({1000}, torch::kDouble) * 3.0;
  const Histogram histogram = make_histogram(values.reshape({10, 100}));
  ASSERT_EQ(histogram.counts.size(), histogram.limits.size());
  double lower = -kInfinity;
  for (std::size_t i = 0; i < histogram.limits.size(); ++i) {
    const auto is_inside = values.ge(lower).logical_and(values.lt(histogram.limits[i]));
    EXPECT_EQ(histogram.counts[i], is_inside.sum().item<double>())
        << "below " << histogram.limits[i];
    lower = histogram.limits[i];
  }
  EXPECT_EQ(std::accumulate(histogram.counts.begin(), histogram.counts.end(), 0.0), 1000.0);
  EXPECT_GT(histogram.counts.front(), 0.0);
  EXPECT_GT(histogram.counts.back(), 0.0);
  EXPECT_DOUBLE_EQ(histogram.sum, values.sum().item<double>());
  EXPECT_DOUBLE_EQ(histogram.sum_squares, values.square().sum().item<double>());
  EXPECT_EQ(histogram.min, values.min().item<double>());
  EXPECT_EQ(histogram.max, values.max().item<double>());
}

TEST(HistogramTest, AValueOnAnEdgeIsInTheBucketAboveIt) {
  EXPECT_EQ(make_histogram(torch::zeros({5})).limits, std::vector<double>{1e-12});
}

TEST(HistogramTest, ExcludesAndCountsNonFiniteElements) {
  const Histogram histogram =
      make_histogram(torch::tensor({1.0, kNaN, -2.0, kInfinity, -kInfinity}, torch::kFloat));
  EXPECT_EQ(histogram.num_non_finite, 3);
  EXPECT_EQ((std::vector{histogram.num, histogram.min, histogram.max, histogram.sum,
                         histogram.sum_squares}),
            (std::vector{2.0, -2.0, 1.0, -1.0, 5.0}));
}

TEST(HistogramTest, AcceptsExtremesZeroHalfPrecisionSparseAndEmptyTensors) {
  const double greatest = std::numeric_limits<double>::max();
  EXPECT_EQ(make_histogram(torch::tensor({greatest, -greatest}, torch::kDouble)).counts,
            (std::vector<double>{1.0, 0.0, 1.0}));
  EXPECT_EQ(make_histogram(torch::zeros({2, 3})).counts, std::vector<double>{6.0});
  EXPECT_EQ(make_histogram(torch::ones({4}, torch::kBFloat16)).num, 4.0);
  EXPECT_EQ(make_histogram(torch::eye(3).to_sparse()).sum, 3.0);
  EXPECT_EQ(make_histogram(torch::ones({2, 0})).num, 0.0);
  EXPECT_TRUE(make_histogram(torch::ones({0})).counts.empty());
  EXPECT_TRUE(make_histogram(torch::full({3}, kNaN)).counts.empty());
}

class TensorBoardTrackerTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  TensorBoardTracker tracker_{{.directory = folder_.path()}};
};

TEST_F(TensorBoardTrackerTest, TensorBoardReadsScalarsWithStepAndTime) {
  tracker_.start({});
  const std::vector<TrackedScalar> scalars{{"loss", 0.5}, {"accuracy/top 5", 2.0}};
  tracker_.log_scalars(scalars, {.update = 7, .epoch = 2, .seconds = 1234.5});
  log_loss(tracker_, 5'000'000'000, kNaN);
  log_loss(tracker_, 5'000'000'001, -kInfinity);
  tracker_.finish("finished", {});

  const json read = read_back(folder_.path());
  SKIP_IF_MISSING(read);
  const json& scalar = read["events"]["scalars"];
  EXPECT_EQ(scalar["accuracy/top 5"], json::parse(R"([[7, "2.0", 1234.5]])"));
  EXPECT_EQ(steps_and_values(scalar["loss"]),
            json::parse(R"([[7, "0.5"], [5000000000, "nan"], [5000000001, "-inf"]])"));
}

TEST_F(TensorBoardTrackerTest, TensorBoardReadsHistogramsAndTexts) {
  tracker_.start({});
  const auto values = torch::tensor({-1.5, 0.25, 0.25, kNaN}, torch::kFloat);
  tracker_.log_histogram("weights/0.bias", values, at_update(3));
  tracker_.log_histogram("weights/empty", torch::ones({0}), at_update(3));
  tracker_.log_text("notes", "**bold** ä", at_update(4));
  tracker_.finish("finished", {});

  const json read = read_back(folder_.path());
  SKIP_IF_MISSING(read);
  const json& events = read["events"];
  ASSERT_EQ(events["histograms"].size(), 1U);
  json expected = json::parse(R"({"step": 3, "min": -1.5, "max": 0.25, "num": 3.0, "sum": -1.0,
                                  "sum_squares": 2.375})");
  expected["limits"] = make_histogram(values).limits;
  expected["counts"] = make_histogram(values).counts;
  EXPECT_EQ(events["histograms"]["weights/0.bias"][0], expected);
  EXPECT_EQ(steps_and_values(events["scalars"]["weights/0.bias/num_non_finite"]),
            json::parse(R"([[3, "1.0"]])"));
  EXPECT_EQ(events["texts"]["notes"], json::parse(R"([[4, "**bold** ä"]])"));
}

TEST_F(TensorBoardTrackerTest, TheHparamsTabShowsConfigurationNewestMetricsAndStatus) {
  tracker_.start({.config = {{"lr", "0.1"}, {"optimizer", "SGD"}, {"is_distributed", "false"}},
                  .environment = {{"host", "a|b"}}});
  log_loss(tracker_, 1, 3.0);
  log_loss(tracker_, 2, 2.0);
  tracker_.finish("early_stop", {});

  const json read = read_back(folder_.path());
  SKIP_IF_MISSING(read);
  const json config = json::parse(R"({"lr": 0.1, "optimizer": "SGD", "is_distributed": false})");
  EXPECT_EQ(read["events"]["hparams"], config);
  ASSERT_EQ(read["hparams_tab"].size(), 1U);
  EXPECT_EQ(read["hparams_tab"][0]["hparams"], config);
  EXPECT_EQ(read["hparams_tab"][0]["metrics"], json::parse(R"({"loss": 2.0})"));
  EXPECT_EQ(read["hparams_tab"][0]["status"], json::parse(R"(["STATUS_SUCCESS"])"));
  const std::string table = read["events"]["texts"]["config"][0][1];
  EXPECT_NE(table.find("| lr | 0.1 |\n"), std::string::npos) << table;
  const std::string environment = read["events"]["texts"]["environment"][0][1];
  EXPECT_NE(environment.find("| host | a\\|b |\n"), std::string::npos) << environment;
}

TEST_F(TensorBoardTrackerTest, AFailedRunHasAFailureStatusAndAStoppedRunHasNone) {
  tracker_.start({});
  tracker_.finish("failed", {});
  tracker_.start({});
  tracker_.finish("stop_request", {});
  const json failed = read_back(folder_.path());
  SKIP_IF_MISSING(failed);
  EXPECT_EQ(failed["events"]["status"], "STATUS_FAILURE");
  EXPECT_TRUE(read_back(folder_.path(), "run-2")["events"]["status"].is_null());
}

TEST_F(TensorBoardTrackerTest, AResumedRunMakesTensorBoardSkipLaterRecords) {
  {
    TensorBoardTracker killed({.directory = folder_.path()});
    killed.start({});
    for (int64_t update = 1; update <= 6; ++update) log_loss(killed, update, update);
    EXPECT_EQ(killed.place(), "run-1");
    TensorBoardTracker newer({.directory = folder_.path()});
    newer.start({});
  }
  tracker_.start({.first_update = 4, .first_epoch = 1, .place = "run-1"});
  log_loss(tracker_, 5, 50.0);
  EXPECT_EQ(event_files(folder_ / "run-1").size(), 2U);

  const json read = read_back(folder_.path());
  SKIP_IF_MISSING(read);
  EXPECT_EQ(steps_and_values(read["events"]["scalars"]["loss"]),
            json::parse(R"([[1, "1.0"], [2, "2.0"], [3, "3.0"], [4, "4.0"], [5, "50.0"]])"));
}

TEST_F(TensorBoardTrackerTest, FurtherRunsHaveSeparateFolders) {
  const auto directory_of = [&](const TrackedRun& run) {
    tracker_.start(run);
    tracker_.finish("finished", {});
    return tracker_.run_directory();
  };
  EXPECT_EQ(directory_of({}), folder_ / "run-1");
  EXPECT_EQ(directory_of({}), folder_ / "run-2");
  EXPECT_EQ(directory_of({.first_update = 3, .place = "run-2"}), folder_ / "run-2");
  EXPECT_EQ(event_files(folder_ / "run-2").size(), 2U);
  EXPECT_EQ(directory_of({.name = "mlp/\xc3\xa4 2.b", .first_update = 3}),
            folder_ / "mlp____2.b-1");
  std::filesystem::copy(folder_ / "run-1", folder_.path(),
                        std::filesystem::copy_options::recursive);
  int number = 3;
  for (const std::string place : {"", "run-9"}) {
    EXPECT_EQ(directory_of({.first_update = 3, .place = place}),
              folder_ / ("run-" + std::to_string(number++)))
        << place;
  }
}

TEST_F(TensorBoardTrackerTest, ContinuesOnlyRunsInItsOwnFolder) {
  tracker_.start({});
  tracker_.finish("finished", {});
  const std::vector<std::string> places = {"..", ".", "/", "run-1/.",
                                           "../" + folder_.path().filename().string() + "/run-1"};
  for (const std::string& place : places) {
    EXPECT_ERROR(tracker_.start({.first_update = 3, .place = place}), "must be a plain name");
  }
  EXPECT_EQ(event_files(folder_ / "run-1").size(), 1U);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run-2"));

  const TemporaryFolder elsewhere;
  std::filesystem::copy(folder_ / "run-1", elsewhere.path());
  std::filesystem::create_directory_symlink(elsewhere.path(), folder_ / "run-3");
  tracker_.start({.first_update = 3, .place = "run-3"});
  EXPECT_EQ(tracker_.run_directory(), folder_ / "run-2");
  EXPECT_EQ(event_files(elsewhere.path()).size(), 1U);
}

TEST_F(TensorBoardTrackerTest, RefusesAFolderWhoseNewestFileHasTheLastName) {
  std::filesystem::create_directory(folder_ / "run-1");
  write_bytes(folder_ / "run-1" / "events.out.tfevents.9223372036854775807", "");
  EXPECT_ERROR(tracker_.start({.first_update = 3, .place = "run-1"}),
               "the timestamp of a new file cannot be larger");
}

TEST_F(TensorBoardTrackerTest, AFileTruncatedInItsLastRecordKeepsEarlierOnes) {
  TensorBoardTracker tracker({.directory = folder_ / "whole"});
  tracker.start({});
  log_loss(tracker, 1, 1.0);
  log_loss(tracker, 2, 2.0);
  const auto path = event_files(tracker.run_directory()).front();
  const std::size_t size_before = read_bytes(path).size();
  log_loss(tracker, 3, 3.0);
  const std::string whole = read_bytes(path);
  const std::size_t last_record = whole.size() - size_before;

  // The file ends in the length, in its checksum, in the event, in the last checksum, or one byte
  // before the end.
  for (const std::size_t kept : std::vector<std::size_t>{1, 7, 8, 11, 12, 13, last_record / 2,
                                                         last_record - 4, last_record - 1}) {
    const auto cut = folder_ / ("cut-" + std::to_string(kept));
    std::filesystem::create_directories(cut / "run-1");
    write_bytes(cut / "run-1" / path.filename(), whole.substr(0, size_before + kept));
    const json read = read_back(cut);
    SKIP_IF_MISSING(read);
    EXPECT_EQ(steps_and_values(read["events"]["scalars"]["loss"]),
              json::parse(R"([[1, "1.0"], [2, "2.0"]])"))
        << kept << " bytes of the last record";
  }
}

TEST_F(TensorBoardTrackerTest, RejectsUseOutsideOfARun) {
  EXPECT_ERROR(log_loss(tracker_, 1, 1.0), "has no run");
}

}  // namespace
}  // namespace linkboy::testing::tensorboard_tracker_test
