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

json read_back(const std::filesystem::path& folder, const std::string& experiment = "Default") {
  return run_python_json("mlflow_peer.py", {folder.string(), experiment});
}

void log(Tracker& tracker, const std::string& name, int64_t update, double value) {
  const TrackedScalar scalar{name, value};
  tracker.log_scalars({&scalar, 1}, {.update = update, .seconds = 10.5 + update});
}

TEST(MlflowTrackerTest, MlflowReadsTheCompleteRun) {
  const TemporaryFolder folder;
  MlflowTracker tracker({.directory = folder / "mlruns", .experiment = "digits: \"first\""});
  tracker.start({.name = "mlp 'a'",
                 .config = {{"lr", "0.1"}, {"comment", "two\nlines"}},
                 .environment = {{"host", "here"}}});
  log(tracker, "loss", 1, 0.1);
  log(tracker, "loss", 2, std::numeric_limits<double>::quiet_NaN());
  log(tracker, "accuracy/top 5", 2, 1e-7);
  tracker.log_text("notes", "# Notes", {});
  tracker.finish("early_stop", {});

  const json read = read_back(folder / "mlruns", "digits: \"first\"");
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

TEST(MlflowTrackerTest, TheStatusFollowsTheOutcome) {
  const TemporaryFolder folder;
  for (const std::string outcome : {"finished", "max_steps", "failed", "nan", "stop_request"}) {
    MlflowTracker tracker({.directory = folder.path()});
    tracker.start({.name = outcome});
    tracker.finish(outcome, {});
  }
  MlflowTracker running({.directory = folder.path()});
  running.start({.name = "running"});

  const json read = read_back(folder.path());
  SKIP_IF_MISSING(read);
  json statuses;
  for (const json& run : read["runs"]) statuses[run["name"].get<std::string>()] = run["status"];
  EXPECT_EQ(statuses, json::parse(R"({"finished": "FINISHED", "max_steps": "FINISHED",
      "failed": "FAILED", "nan": "FAILED", "stop_request": "KILLED", "running": "RUNNING"})"));
}

TEST(MlflowTrackerTest, ANewRunOfTheSameNameIsASeparateRun) {
  const TemporaryFolder folder;
  MlflowTracker tracker({.directory = folder.path()});
  tracker.start({.name = "mlp"});
  tracker.finish("finished", {});
  const std::string first = tracker.run_id();
  const auto experiment = tracker.run_directory().parent_path();
  tracker.start({.name = "mlp"});
  EXPECT_NE(tracker.run_id(), first);
  EXPECT_EQ(tracker.run_directory().parent_path(), experiment);
  EXPECT_EQ(experiment, folder / "0");
}

TEST(MlflowTrackerTest, AResumedRunContinuesItsRecordWithoutLaterValues) {
  const TemporaryFolder folder;
  MlflowTracker other({.directory = folder.path()});
  auto killed = std::make_unique<MlflowTracker>(MlflowTrackerOptions{.directory = folder.path()});
  killed->start({.name = "mlp"});
  for (int64_t update = 1; update <= 6; ++update) log(*killed, "loss", update, update);
  log(*killed, "late", 6, 1.0);
  const std::string place = killed->place();
  killed.reset();  // as if the process had been killed
  other.start({.name = "another"});

  MlflowTracker tracker({.directory = folder.path()});
  tracker.start({.name = "mlp", .first_update = 4, .place = place});
  EXPECT_EQ(tracker.run_id(), place);
  log(tracker, "loss", 5, 50.0);
  tracker.finish("finished", {});

  const json read = read_back(folder.path());
  SKIP_IF_MISSING(read);
  ASSERT_EQ(read["runs"].size(), 2U);
  const json& run = read["runs"][read["runs"][0]["name"] == "mlp" ? 0 : 1];
  EXPECT_EQ(run["status"], "FINISHED");
  EXPECT_EQ(run["metrics"].size(), 1U);
  EXPECT_EQ(run["metrics"]["loss"],
            json::parse(R"([[1, "1.0", 11500], [2, "2.0", 12500], [3, "3.0", 13500],
                            [4, "4.0", 14500], [5, "50.0", 15500]])"));
}

TEST(MlflowTrackerTest, AResumedRunChangesNoOtherRunOfItsName) {
  const TemporaryFolder folder;
  MlflowTracker finished({.directory = folder.path()});
  finished.start({.name = "mlp"});
  for (int64_t update = 1; update <= 6; ++update) log(finished, "loss", update, update);
  finished.finish("finished", {});
  const auto path = finished.run_directory() / "metrics" / "loss";
  const std::string before = read_bytes(path);
  write_bytes(folder / "meta.yaml", "name: hostile");
  for (const std::string place : {"", "not-there", "../..", "..", ".", "/", "a/b"}) {
    MlflowTracker tracker({.directory = folder.path()});
    tracker.start({.name = "mlp", .first_update = 2, .place = place});
    EXPECT_NE(tracker.run_id(), finished.run_id()) << place;
    EXPECT_EQ(tracker.run_directory().parent_path(), finished.run_directory().parent_path());
    EXPECT_EQ(read_bytes(path), before) << place;
  }
}

TEST(MlflowTrackerTest, ADeletedRunIsNotContinued) {
  const TemporaryFolder folder;
  MlflowTracker deleted({.directory = folder.path()});
  deleted.start({});
  const auto meta = deleted.run_directory() / "meta.yaml";
  std::string text = read_bytes(meta);
  text.replace(text.find("stage: active"), 13, "stage: deleted");
  write_bytes(meta, text);
  MlflowTracker tracker({.directory = folder.path()});
  tracker.start({.first_update = 2, .place = deleted.place()});
  EXPECT_NE(tracker.run_id(), deleted.run_id());
}

TEST(MlflowTrackerTest, MetricsWithCollidingNamesHaveSeparateFiles) {
  const TemporaryFolder folder;
  MlflowTracker tracker({.directory = folder.path()});
  tracker.start({});
  for (const std::string name : {"loss@1", "loss_1", "a", "a/b", "c/d", "c"}) {
    log(tracker, name, 1, 1.0);
    log(tracker, name, 2, 2.0);
  }
  tracker.finish("finished", {});
  const json read = read_back(folder.path());
  SKIP_IF_MISSING(read);
  const json& metrics = read["runs"][0]["metrics"];
  EXPECT_EQ(metrics.size(), 6U) << metrics;
  for (const auto& [name, values] : metrics.items()) EXPECT_EQ(values.size(), 2U) << name;
}

TEST(MlflowTrackerTest, TheFirstOfCollidingNamesKeepsItsFileName) {
  const TemporaryFolder folder;
  MlflowTracker tracker({.directory = folder.path()});
  tracker.start({});
  log(tracker, "loss@1", 1, 1.0);
  log(tracker, "loss_1", 1, 2.0);
  EXPECT_EQ(read_bytes(tracker.run_directory() / "metrics" / "loss_1"), "11500 1 1\n");
  EXPECT_EQ(all_bytes_in(tracker.run_directory() / "metrics").size(), 2U);
  tracker.finish("finished", {});

  tracker.start({});
  log(tracker, "loss_1", 1, 3.0);
  EXPECT_EQ(read_bytes(tracker.run_directory() / "metrics" / "loss_1"), "11500 3 1\n");
}

TEST(MlflowTrackerTest, AThousandMetricsDoNotNeedAThousandOpenFiles) {
  const TemporaryFolder folder;
  MlflowTracker tracker({.directory = folder.path()});
  tracker.start({});
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit smaller{.rlim_cur = std::min<rlim_t>(limit.rlim_cur, 200),
                       .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &smaller), 0);
  for (int i = 0; i < 300; ++i) {
    log(tracker, "loss_" + std::to_string(i), 1, 1.0);
    log(tracker, "loss_" + std::to_string(i), 2, 2.0);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(read_bytes(tracker.run_directory() / "metrics" / "loss_299"), "11500 1 1\n12500 2 2\n");
}

TEST(MlflowTrackerTest, UnreadableExperimentsAreSkipped) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "theirs" / "meta.yaml");  // reading it fails
  std::filesystem::create_directory_symlink("loop", folder / "loop");  // its status cannot be read
  MlflowTracker tracker({.directory = folder.path(), .experiment = "mine"});
  tracker.start({});
  EXPECT_TRUE(std::filesystem::exists(tracker.run_directory()));
}

TEST(MlflowTrackerTest, AResumedRunDropsATruncatedLine) {
  const TemporaryFolder folder;
  auto killed = std::make_unique<MlflowTracker>(MlflowTrackerOptions{.directory = folder.path()});
  killed->start({});
  log(*killed, "loss", 1, 1.0);
  const auto path = killed->run_directory() / "metrics" / "loss";
  write_bytes(path, read_bytes(path) + "12500 2.0");
  const std::string place = killed->place();
  killed.reset();  // as if the process had been killed
  MlflowTracker tracker({.directory = folder.path()});
  tracker.start({.first_update = 3, .place = place});
  EXPECT_EQ(read_bytes(path), "11500 1 1\n");
}

TEST(MlflowTrackerTest, TheRunIdSelectsARunAndKeepsItsRecords) {
  const TemporaryFolder folder;
  MlflowTracker first({.directory = folder.path()});
  first.start({.name = "mlp"});
  log(first, "loss", 1, 1.0);
  first.finish("finished", {});
  MlflowTracker second({.directory = folder.path(), .run_id = first.run_id()});
  second.start({.name = "whatever"});
  log(second, "loss", 2, 2.0);
  EXPECT_EQ(read_bytes(first.run_directory() / "metrics" / "loss"), "11500 1 1\n12500 2 2\n");
}

TEST(MlflowTrackerTest, AValueIsWrittenImmediately) {
  const TemporaryFolder folder;
  MlflowTracker tracker({.directory = folder.path()});
  tracker.start({});
  log(tracker, "loss", 1, 1.0);
  log(tracker, "loss", 2, 0.5);
  EXPECT_EQ(read_bytes(tracker.run_directory() / "metrics" / "loss"), "11500 1 1\n12500 0.5 2\n");
}

TEST(MlflowTrackerTest, NamesAreConvertedForMlflow) {
  EXPECT_EQ(mlflow_name("train/loss_1 a-b.c:d"), "train/loss_1 a-b.c:d");
  EXPECT_EQ(mlflow_name("acc@5 (%)"), "acc_5 ___");
  EXPECT_EQ(mlflow_name("/a//../b/."), "a/__/b/_");
  EXPECT_EQ(mlflow_name("../../etc"), "__/__/etc");
  EXPECT_EQ(mlflow_name(""), "_");
  EXPECT_EQ(mlflow_name("///"), "_");
  EXPECT_EQ(mlflow_name("ä"), "__");
  EXPECT_EQ(mlflow_name(std::string(300, 'x')).size(), 250U);
  EXPECT_EQ(mlflow_name(std::string(249, 'x') + "/y").back(), '_');

  const TemporaryFolder folder;
  MlflowTracker tracker({.directory = folder.path()});
  tracker.start({.config = {{"betas[0]", std::string(7000, 'v')}}});
  log(tracker, "../acc@5", 1, 1.0);
  tracker.finish("finished", {});
  const json read = read_back(folder.path());
  SKIP_IF_MISSING(read);
  EXPECT_TRUE(read["runs"][0]["metrics"].contains("__/acc_5"));
  EXPECT_EQ(read["runs"][0]["params"]["betas_0_"].get<std::string>().size(), 6000U);
}

TEST(MlflowTrackerTest, ASecondRunIsRefusedWhileTheFirstOneWrites) {
  const TemporaryFolder folder;
  MlflowTracker first({.directory = folder.path()});
  first.start({});
  for (int64_t update = 1; update <= 6; ++update) log(first, "loss", update, 1.0);
  const auto before = all_bytes_in(folder.path());
  MlflowTracker resumed({.directory = folder.path()});
  EXPECT_ERROR(resumed.start({.first_update = 3, .place = first.place()}), "in use by another run");
  MlflowTracker named({.directory = folder.path(), .run_id = first.run_id()});
  EXPECT_ERROR(named.start({}), "in use by another run");
  EXPECT_TRUE(all_bytes_in(folder.path()) == before);
  first.finish("finished", {});
  resumed.start({.first_update = 3, .place = first.place()});
}

TEST(MlflowTrackerTest, AnExistingExperimentIsFoundWithoutLockingTheStore) {
  const TemporaryFolder folder;
  MlflowTracker first({.directory = folder.path()});
  first.start({});
  const Descriptor lock = lock_folder(folder.path());
  MlflowTracker second({.directory = folder.path()});
  second.start({});
  EXPECT_EQ(second.run_directory().parent_path(), first.run_directory().parent_path());
}

TEST(MlflowTrackerTest, AMetricContinuesAfterItsFirstWriteFailed) {
  const TemporaryFolder folder;
  MlflowTracker tracker({.directory = folder.path()});
  tracker.start({});
  {
    const FileSizeLimit limit(3);
    EXPECT_ERROR(log(tracker, "loss", 1, 1.0), "File too large");
  }
  log(tracker, "loss", 2, 2.0);
  EXPECT_EQ(read_bytes(tracker.run_directory() / "metrics" / "loss"), "12500 2 2\n");
}

TEST(MlflowTrackerTest, UnreadableMetricsAreAnError) {
  const TemporaryFolder folder;
  MlflowTracker tracker({.directory = folder.path()});
  tracker.start({});
  const TrackedRun resumed{.first_update = 3, .place = tracker.place()};
  tracker.finish("finished", {});
  const auto metrics = tracker.run_directory() / "metrics";
  std::filesystem::create_symlink("loop", metrics / "loop");  // its status cannot be read
  tracker.start(resumed);
  tracker.finish("finished", {});
  std::filesystem::rename(metrics, tracker.run_directory() / "aside");
  write_bytes(metrics, "");
  EXPECT_ERROR(tracker.start(resumed), "cannot read \"" + metrics.string());
}

TEST(MlflowTrackerTest, AFullDiskIsAnErrorWithPathAndReason) {
  const TemporaryFolder folder;
  MlflowTracker tracker({.directory = folder.path()});
  tracker.start({});
  log(tracker, "loss", 1, 1.0);
  const auto path = tracker.run_directory() / "metrics" / "loss";
  {
    const FileSizeLimit limit(std::filesystem::file_size(path) + 3);
    EXPECT_ERROR(log(tracker, "loss", 2, 2.0), path.string());
    EXPECT_ERROR(log(tracker, "loss", 2, 2.0), "File too large");
  }
  EXPECT_EQ(read_bytes(path), "11500 1 1\n");
}

TEST(MlflowTrackerTest, RejectsInvalidOptionsFoldersAndUseOutsideOfARun) {
  const TemporaryFolder folder;
  write_bytes(folder / "file", "");
  EXPECT_ERROR(MlflowTracker(MlflowTrackerOptions{.experiment = ""}), "experiment is empty");
  EXPECT_ERROR(MlflowTracker(MlflowTrackerOptions{.run_id = "../a"}), "run_id is \"../a\"");
  MlflowTracker unwritable({.directory = folder / "file" / "mlruns"});
  EXPECT_ERROR(unwritable.start({}), (folder / "file" / "mlruns").string());
  MlflowTracker unknown({.directory = folder.path(), .run_id = "abc"});
  EXPECT_ERROR(unknown.start({}), "has no such run");
  MlflowTracker tracker({.directory = folder.path()});
  EXPECT_ERROR(log(tracker, "loss", 1, 1.0), "has no run");
  EXPECT_ERROR(tracker.log_text("a", "b", {}), "has no run");
  EXPECT_ERROR(tracker.finish("finished", {}), "has no run");
}

}  // namespace
}  // namespace linkboy::testing::mlflow_tracker_test
