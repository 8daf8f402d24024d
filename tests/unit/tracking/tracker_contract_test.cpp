// Tests of the properties that all trackers share: only one run writes to a record at a time, and a
// record survives a full disk.

#include <gtest/gtest.h>

#include "linkboy/tracking.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/file_size_limit.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::tracker_contract_test {
namespace {

constexpr char kFileInUse[] = "is being written by another run";
constexpr char kFolderInUse[] = "in use by another run";
constexpr char kLineNotWritten[] =
    "\" (File too large); earlier records are kept. Raise the limit on the size of files";
constexpr char kFileNotWritten[] = "\" (File too large)";

struct Kind {
  std::string name;
  /// A part of the path of the file with the values of the metric "loss".
  std::string file;
  const char* in_use;
  const char* not_written;
  TextSettings settings{};
};

void PrintTo(const Kind& kind, std::ostream* stream) { *stream << kind.name; }

std::vector<Kind> kinds() {
  return {{"csv", "record", kFileInUse, kLineNotWritten},
          {"html-report", "record", kFileInUse, kFileNotWritten, {{"seconds_between_writes", "0"}}},
          {"json-lines", "record", kFileInUse, kLineNotWritten},
          {"tensorboard", "events.", kFolderInUse, kFileNotWritten}};
}

class TrackerContractTest : public ::testing::TestWithParam<Kind> {
 protected:
  /// Returns a tracker that records in this file or folder.
  std::shared_ptr<Tracker> make_at(const std::filesystem::path& path) const {
    TextSettings settings = GetParam().settings;
    const std::string key = tracker_options(GetParam().name).front().first;  // path or directory
    settings.emplace_back(key, path.string());
    return make_tracker(GetParam().name, settings);
  }

  static void log_loss(Tracker& tracker, int64_t update) {
    const TrackedScalar scalar{"loss", 1.5};
    tracker.log_scalars({&scalar, 1}, {.update = update, .seconds = 1000.5});
    tracker.flush();
  }

  bool records_in_a_file() const { return GetParam().in_use == kFileInUse; }

  TemporaryFolder folder_;
  std::shared_ptr<Tracker> tracker_ = make_at(folder_ / "record");
};

INSTANTIATE_TEST_SUITE_P(Trackers, TrackerContractTest, ::testing::ValuesIn(kinds()),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(TrackerContractTest, ASecondRunIsRefusedWhileTheFirstOneWrites) {
  tracker_->start({});
  const auto second = make_at(folder_ / "record");
  const TrackedRun resumed{.first_update = 3, .place = tracker_->place()};
  auto earlier = all_bytes_in(folder_.path());
  for (int64_t update = 1; update <= 3; ++update) {  // each flush of a report replaces its file
    log_loss(*tracker_, update);
    const auto before = all_bytes_in(folder_.path());
    EXPECT_NE(before, earlier);
    EXPECT_ERROR(second->start(resumed), GetParam().in_use);
    if (records_in_a_file()) EXPECT_ERROR(second->start({}), GetParam().in_use);
    EXPECT_EQ(all_bytes_in(folder_.path()), before);
    earlier = before;
  }
  tracker_->finish("finished", {});
  second->start(resumed);
}

TEST_P(TrackerContractTest, AFullDiskIsAnErrorThatKeepsEarlierRecords) {
  tracker_->start({});
  log_loss(*tracker_, 1);
  const auto before = all_bytes_in(folder_.path());
  const auto file = std::find_if(before.begin(), before.end(), [](const auto& entry) {
    return entry.first.find(GetParam().file) != std::string::npos;
  });
  ASSERT_NE(file, before.end());
  {
    const FileSizeLimit limit(file->second.size() + 3);
    EXPECT_ERROR(log_loss(*tracker_, 2), file->first + GetParam().not_written);
  }
  EXPECT_EQ(all_bytes_in(folder_.path()), before);
  log_loss(*tracker_, 3);
  const std::string after = read_bytes(file->first);
  EXPECT_GT(after.size(), file->second.size());
  EXPECT_TRUE(after.starts_with(file->second) || GetParam().name == "html-report") << after;
}

TEST_P(TrackerContractTest, RefusesPathsThatCannotBeWritten) {
  write_bytes(folder_ / "file", "text");
  const auto below_a_file = folder_ / "file" / "record";
  EXPECT_ERROR(make_at(below_a_file)->start({}), below_a_file.string());
  if (records_in_a_file()) {
    EXPECT_ERROR(make_at(folder_.path())->start({}), "is not a regular file");
    EXPECT_ERROR(make_at("/dev/null")->start({}), "\"/dev/null\" is not a regular file");
  }
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"file"});
}

TEST(TrackerContractCoverageTest, EveryTrackerIsInTheSuite) {
  std::vector<std::string> names;
  for (const Kind& kind : kinds()) names.push_back(kind.name);
  EXPECT_EQ(names, tracker_names());
}

}  // namespace
}  // namespace linkboy::testing::tracker_contract_test
