// Tests of the order of AtomicFile's system calls, which decides what a power failure leaves.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/atomic_file.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "support/file_calls.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::atomic_file_sync_test {
namespace {

std::vector<FileCall::Kind> kinds_of(const FileCallRecorder& recorder) {
  std::vector<FileCall::Kind> kinds;
  for (const FileCall& call : recorder.calls()) kinds.push_back(call.kind);
  return kinds;
}

TEST(AtomicFileSyncTest, SyncsTheBytesBeforeTheName) {
  const TemporaryFolder folder;
  const FileCallRecorder recorder(folder.path());
  AtomicFile file(folder / "x");
  file.write("new", 3);
  file.commit();
  using enum FileCall::Kind;
  EXPECT_THAT(kinds_of(recorder),
              ::testing::ElementsAre(make_file, write, sync_file, rename, sync_folder));
}

// While the new folder is empty, another SaveTrainingState may remove it when it looks for its next
// number.
TEST(AtomicFileSyncTest, ARemovedFolderIsCreatedAgain) {
  const TemporaryFolder folder;
  const std::filesystem::path state = training_state_folder(folder.path(), 7);
  FileCallRecorder recorder(folder.path());
  bool was_removed = false;
  recorder.after_next_folder([&] {
    next_training_state_number(folder.path());
    was_removed = !std::filesystem::exists(state);
  });
  AtomicFile file(state / "x");
  EXPECT_TRUE(was_removed);
  file.write("new", 3);
  file.commit();
  EXPECT_TRUE(std::filesystem::exists(state / "x"));
}

TEST(AtomicFileSyncTest, EachNewFolderIsSyncedInItsParent) {
  const TemporaryFolder folder;
  const FileCallRecorder recorder(folder.path());
  create_folders(folder / "states" / "state-1");
  create_folders(folder / "states" / "state-1");
  using enum FileCall::Kind;
  EXPECT_THAT(kinds_of(recorder),
              ::testing::ElementsAre(make_folder, sync_folder, make_folder, sync_folder));
}

}  // namespace
}  // namespace linkboy::testing::atomic_file_sync_test
