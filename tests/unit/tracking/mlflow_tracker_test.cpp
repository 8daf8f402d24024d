// Tests of runs in MLflow's file store. MLflow's client reads them back.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/file_lock.hpp"
#include "linkboy/tracking/mlflow_tracker.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/file_size_limit.hpp"
#include "support/python_peer.hpp"
#include "support/temporary_folder.hpp"
#include "tracking/mlflow_store.hpp"

namespace linkboy::testing::mlflow_tracker_test {
namespace {

using nlohmann::json;

void log(Tracker& tracker, const std::string& name, int64_t update, double value) {
  const TrackedScalar scalar{name, value};
  tracker.log_scalars({&scalar, 1}, {.update = update, .seconds = 10.5 + update});
}

class MlflowTrackerTest : public ::testing::Test {
 protected:
  /// Returns the runs in `folder_` as MLflow reads them.
  json read_back(const std::string& experiment = "Default") const {
    return run_python_json("mlflow_peer.py", {folder_.path().string(), experiment});
  }

  static std::string records(const MlflowTracker& tracker, const std::string& metric = "loss") {
    return read_bytes(tracker.run_directory() / "metrics" / metric);
  }

  TemporaryFolder folder_;
  MlflowTracker tracker_{{.directory = folder_.path()}};
};

TEST_F(MlflowTrackerTest, MlflowReadsTheCompleteRun) {
  MlflowTracker tracker({.directory = folder_.path(), .experiment = "digits: \"first\""});
  tracker.start({.name = "mlp 'a'",
                 .config = {{"lr", "0.1"}, {"comment", "two\nlines"}},
                 .environment = {{"host", "here"}}});
  log(tracker, "loss", 1, 0.1);
  log(tracker, "loss", 2, std::numeric_limits<double>::quiet_NaN());
  log(tracker, "accuracy/top 5", 2, 1e-7);
  tracker.log_text("notes", "# Notes", {});
  tracker.finish("early_stop", {});

  const json read = read_back("digits: \"first\"");
  SKIP_IF_MISSING(read);
  EXPECT_EQ(read["experiments"], json::parse(R"(["digits: \"first\""])"));
  ASSERT_EQ(read["runs"].size(), 1U);
  const json& run = read["runs"][0];
  EXPECT_EQ(run["id"], tracker.run_id());
  EXPECT_EQ(run["name"], "mlp 'a'");
  EXPECT_EQ(run["status"], "FINISHED");
  EXPECT_GE(run["end"], run["start"]);
  EXPECT_EQ(run["params"], json::parse(R"({"lr": "0.1", "comment": "two\nlines"})"));
  EXPECT_EQ(run["metrics"]["loss"], json::parse(R"([[1, "0.1", 11500], [2, "nan", 12500]])"));
  EXPECT_EQ(run["metrics"]["accuracy/top 5"], json::parse(R"([[2, "1e-07", 12500]])"));
  EXPECT_EQ(run["tags"]["environment.host"], "here");
  EXPECT_EQ(run["tags"]["outcome"], "early_stop");
  EXPECT_EQ(run["tags"]["mlflow.runName"], "mlp 'a'");
  EXPECT_EQ(run["tags"]["mlflow.source.type"], "LOCAL");
  EXPECT_EQ(run["artifacts"], json::parse(R"(["notes.md"])"));
}

TEST_F(MlflowTrackerTest, TheStatusFollowsTheOutcome) {
  for (const std::string outcome : {"finished", "max_steps", "failed", "nan", "stop_request"}) {
    MlflowTracker tracker({.directory = folder_.path()});
    tracker.start({.name = outcome});
    tracker.finish(outcome, {});
  }
  MlflowTracker running({.directory = folder_.path()});
  running.start({.name = "running"});

  const json read = read_back();
  SKIP_IF_MISSING(read);
  json statuses;
  for (const json& run : read["runs"]) statuses[run["name"].get<std::string>()] = run["status"];
  EXPECT_EQ(statuses, json::parse(R"({"finished": "FINISHED", "max_steps": "FINISHED",
      "failed": "FAILED", "nan": "FAILED", "stop_request": "KILLED", "running": "RUNNING"})"));
}

TEST_F(MlflowTrackerTest, ANewRunOfTheSameNameIsASeparateRun) {
  tracker_.start({.name = "mlp"});
  tracker_.finish("finished", {});
  const std::string first = tracker_.run_id();
  const auto experiment = tracker_.run_directory().parent_path();
  tracker_.start({.name = "mlp"});
  EXPECT_NE(tracker_.run_id(), first);
  EXPECT_EQ(tracker_.run_directory().parent_path(), experiment);
  EXPECT_EQ(experiment, folder_ / "0");
}

TEST_F(MlflowTrackerTest, AResumedRunContinuesItsRecordWithoutLaterValues) {
  MlflowTracker other({.directory = folder_.path()});
  auto killed = std::make_unique<MlflowTracker>(MlflowTrackerOptions{.directory = folder_.path()});
  killed->start({.name = "mlp"});
  for (int64_t update = 1; update <= 6; ++update) log(*killed, "loss", update, update);
  log(*killed, "late", 6, 1.0);
  const std::string place = killed->place();
  killed.reset();  // as if the process had been killed
  other.start({.name = "another"});

  tracker_.start({.name = "mlp", .first_update = 4, .place = place});
  EXPECT_EQ(tracker_.run_id(), place);
  log(tracker_, "loss", 5, 50.0);
  tracker_.finish("finished", {});

  const json read = read_back();
  SKIP_IF_MISSING(read);
  ASSERT_EQ(read["runs"].size(), 2U);
  const json& run = read["runs"][read["runs"][0]["name"] == "mlp" ? 0 : 1];
  EXPECT_EQ(run["status"], "FINISHED");
  EXPECT_EQ(run["metrics"].size(), 1U);
  EXPECT_EQ(run["metrics"]["loss"],
            json::parse(R"([[1, "1.0", 11500], [2, "2.0", 12500], [3, "3.0", 13500],
                            [4, "4.0", 14500], [5, "50.0", 15500]])"));
}

TEST_F(MlflowTrackerTest, AResumedRunChangesNoOtherRunOfItsName) {
  MlflowTracker finished({.directory = folder_.path()});
  finished.start({.name = "mlp"});
  for (int64_t update = 1; update <= 6; ++update) log(finished, "loss", update, update);
  finished.finish("finished", {});
  const auto path = finished.run_directory() / "metrics" / "loss";
  const std::string before = read_bytes(path);
  write_bytes(folder_ / "meta.yaml", "name: hostile");
  for (const std::string place : {"", "not-there", "../..", "..", ".", "/", "a/b"}) {
    MlflowTracker tracker({.directory = folder_.path()});
    tracker.start({.name = "mlp", .first_update = 2, .place = place});
    EXPECT_NE(tracker.run_id(), finished.run_id()) << place;
    EXPECT_EQ(tracker.run_directory().parent_path(), finished.run_directory().parent_path());
    EXPECT_EQ(read_bytes(path), before) << place;
  }
}

TEST_F(MlflowTrackerTest, ADeletedRunIsNotContinued) {
  MlflowTracker deleted({.directory = folder_.path()});
  deleted.start({});
  const auto meta = deleted.run_directory() / "meta.yaml";
  std::string text = read_bytes(meta);
  text.replace(text.find("stage: active"), 13, "stage: deleted");
  write_bytes(meta, text);
  tracker_.start({.first_update = 2, .place = deleted.place()});
  EXPECT_NE(tracker_.run_id(), deleted.run_id());
}

TEST_F(MlflowTrackerTest, MetricsWithCollidingNamesHaveSeparateFiles) {
  tracker_.start({});
  for (const std::string name : {"loss@1", "loss_1", "a", "a/b", "c/d", "c"}) {
    log(tracker_, name, 1, 1.0);
    log(tracker_, name, 2, 2.0);
  }
  tracker_.finish("finished", {});
  const json read = read_back();
  SKIP_IF_MISSING(read);
  const json& metrics = read["runs"][0]["metrics"];
  EXPECT_EQ(metrics.size(), 6U) << metrics;
  for (const auto& [name, values] : metrics.items()) EXPECT_EQ(values.size(), 2U) << name;
}

TEST_F(MlflowTrackerTest, TheFirstOfCollidingNamesKeepsItsFileName) {
  tracker_.start({});
  log(tracker_, "loss@1", 1, 1.0);
  log(tracker_, "loss_1", 1, 2.0);
  EXPECT_EQ(records(tracker_, "loss_1"), "11500 1 1\n");
  EXPECT_EQ(all_bytes_in(tracker_.run_directory() / "metrics").size(), 2U);
  tracker_.finish("finished", {});

  tracker_.start({});
  log(tracker_, "loss_1", 1, 3.0);
  EXPECT_EQ(records(tracker_, "loss_1"), "11500 3 1\n");
}

TEST_F(MlflowTrackerTest, AThousandMetricsDoNotNeedAThousandOpenFiles) {
  tracker_.start({});
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit smaller{.rlim_cur = std::min<rlim_t>(limit.rlim_cur, 200),
                       .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &smaller), 0);
  for (int i = 0; i < 300; ++i) {
    log(tracker_, "loss_" + std::to_string(i), 1, 1.0);
    log(tracker_, "loss_" + std::to_string(i), 2, 2.0);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(records(tracker_, "loss_299"), "11500 1 1\n12500 2 2\n");
}

TEST_F(MlflowTrackerTest, UnreadableExperimentsAreSkipped) {
  std::filesystem::create_directories(folder_ / "theirs" / "meta.yaml");  // reading it fails
  std::filesystem::create_directory_symlink("loop", folder_ / "loop");  // its status cannot be read
  MlflowTracker tracker({.directory = folder_.path(), .experiment = "mine"});
  tracker.start({});
  EXPECT_TRUE(std::filesystem::exists(tracker.run_directory()));
}

TEST_F(MlflowTrackerTest, AResumedRunDropsATruncatedLine) {
  auto killed = std::make_unique<MlflowTracker>(MlflowTrackerOptions{.directory = folder_.path()});
  killed->start({});
  log(*killed, "loss", 1, 1.0);
  const auto path = killed->run_directory() / "metrics" / "loss";
  write_bytes(path, read_bytes(path) + "12500 2.0");
  const std::string place = killed->place();
  killed.reset();  // as if the process had been killed
  tracker_.start({.first_update = 3, .place = place});
  EXPECT_EQ(read_bytes(path), "11500 1 1\n");
}

TEST_F(MlflowTrackerTest, TheRunIdSelectsARunAndKeepsItsRecords) {
  MlflowTracker first({.directory = folder_.path()});
  first.start({.name = "mlp"});
  log(first, "loss", 1, 1.0);
  MlflowTracker second({.directory = folder_.path(), .run_id = first.run_id()});
  EXPECT_ERROR(second.start({}), "in use by another run");
  first.finish("finished", {});
  second.start({.name = "whatever"});
  log(second, "loss", 2, 2.0);
  EXPECT_EQ(records(first), "11500 1 1\n12500 2 2\n");
}

TEST_F(MlflowTrackerTest, NamesAreConvertedForMlflow) {
  EXPECT_EQ(mlflow_name("train/loss_1 a-b.c:d"), "train/loss_1 a-b.c:d");
  EXPECT_EQ(mlflow_name("acc@5 (%)"), "acc_5 ___");
  EXPECT_EQ(mlflow_name("/a//../b/."), "a/__/b/_");
  EXPECT_EQ(mlflow_name("../../etc"), "__/__/etc");
  EXPECT_EQ(mlflow_name(""), "_");
  EXPECT_EQ(mlflow_name("///"), "_");
  EXPECT_EQ(mlflow_name("ä"), "__");
  EXPECT_EQ(mlflow_name(std::string(300, 'x')).size(), 250U);
  EXPECT_EQ(mlflow_name(std::string(249, 'x') + "/y").back(), '_');

  tracker_.start({.config = {{"betas[0]", std::string(7000, 'v')}}});
  log(tracker_, "../acc@5", 1, 1.0);
  tracker_.finish("finished", {});
  const json read = read_back();
  SKIP_IF_MISSING(read);
  EXPECT_TRUE(read["runs"][0]["metrics"].contains("__/acc_5"));
  EXPECT_EQ(read["runs"][0]["params"]["betas_0_"].get<std::string>().size(), 6000U);
}

TEST_F(MlflowTrackerTest, AnExistingExperimentIsFoundWithoutLockingTheStore) {
  MlflowTracker first({.directory = folder_.path()});
  first.start({});
  const Descriptor lock = lock_folder(folder_.path());
  MlflowTracker second({.directory = folder_.path()});
  second.start({});
  EXPECT_EQ(second.run_directory().parent_path(), first.run_directory().parent_path());
}

TEST_F(MlflowTrackerTest, AMetricContinuesAfterItsFirstWriteFailed) {
  tracker_.start({});
  {
    const FileSizeLimit limit(3);
    EXPECT_ERROR(log(tracker_, "loss", 1, 1.0), "File too large");
  }
  log(tracker_, "loss", 2, 2.0);
  EXPECT_EQ(records(tracker_), "12500 2 2\n");
}

TEST_F(MlflowTrackerTest, UnreadableMetricsAreAnError) {
  tracker_.start({});
  const TrackedRun resumed{.first_update = 3, .place = tracker_.place()};
  tracker_.finish("finished", {});
  const auto metrics = tracker_.run_directory() / "metrics";
  std::filesystem::create_symlink("loop", metrics / "loop");  // its status cannot be read
  tracker_.start(resumed);
  tracker_.finish("finished", {});
  std::filesystem::rename(metrics, tracker_.run_directory() / "aside");
  write_bytes(metrics, "");
  EXPECT_ERROR(tracker_.start(resumed), "cannot read \"" + metrics.string());
}

TEST_F(MlflowTrackerTest, RejectsInvalidOptionsAndUseOutsideOfARun) {
  EXPECT_ERROR(MlflowTracker(MlflowTrackerOptions{.experiment = ""}), "experiment is empty");
  EXPECT_ERROR(MlflowTracker(MlflowTrackerOptions{.run_id = "../a"}), "run_id is \"../a\"");
  MlflowTracker unknown({.directory = folder_.path(), .run_id = "abc"});
  EXPECT_ERROR(unknown.start({}), "has no such run");
  EXPECT_ERROR(log(tracker_, "loss", 1, 1.0), "has no run");
  EXPECT_ERROR(tracker_.log_text("a", "b", {}), "has no run");
  EXPECT_ERROR(tracker_.finish("finished", {}), "has no run");
}

}  // namespace
}  // namespace linkboy::testing::mlflow_tracker_test
