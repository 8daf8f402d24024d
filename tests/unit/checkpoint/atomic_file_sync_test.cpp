// In what order AtomicFile asks the system for what, as a power cut would find it: this program's
// own fsync and rename stand before those of the C library.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "checkpoint/atomic_file.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::atomic_file_sync_test {
namespace {

/// Where to note the calls of this thread; null outside a test.
thread_local std::vector<std::string>* system_calls = nullptr;

bool is_folder(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode);
}

TEST(AtomicFileSyncTest, BytesAreOnTheDiskBeforeTheNameAndThenTheName) {
  const TemporaryFolder folder;
  AtomicFile file(folder / "x");
  file.write("new", 3);
  std::vector<std::string> calls;
  system_calls = &calls;
  file.commit();
  system_calls = nullptr;
  EXPECT_THAT(calls, ::testing::ElementsAre("sync file", "rename", "sync folder"));
}

TEST(AtomicFileSyncTest, EachNewFolderIsOnTheDiskInItsParent) {
  const TemporaryFolder folder;
  std::vector<std::string> calls;
  system_calls = &calls;
  create_folders(folder / "states" / "state-1");
  create_folders(folder / "states" / "state-1");
  system_calls = nullptr;
  EXPECT_THAT(calls, ::testing::ElementsAre("sync folder", "sync folder"));
}

}  // namespace

void note_sync(int descriptor) {
  if (system_calls != nullptr) {
    system_calls->emplace_back(is_folder(descriptor) ? "sync folder" : "sync file");
  }
}

void note_rename() {
  if (system_calls != nullptr) system_calls->emplace_back("rename");
}

}  // namespace linkboy::testing::atomic_file_sync_test

extern "C" int fsync(int descriptor) {
  linkboy::testing::atomic_file_sync_test::note_sync(descriptor);
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  linkboy::testing::atomic_file_sync_test::note_rename();
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
