#include "checkpoint/atomic_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "linkboy/checkpoint/training_state_folders.hpp"
#include "support/expect_error.hpp"
#include "support/file_calls.hpp"
#include "support/file_contents.hpp"
#include "support/file_size_limit.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::atomic_file_test {
namespace {

using Names = std::vector<std::string>;

/// Writes the file in one piece.
void write_atomically(const std::filesystem::path& path, const std::string& bytes) {
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

constexpr std::size_t kPiece = std::size_t{4} << 20;  // the size of AtomicFile's writes

std::string pattern(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 + (i >> 12));
  return bytes;
}

// Complete pieces bypass the page cache, and an unaligned rest is written through it. The sizes lie
// around both limits.
TEST(AtomicFileTest, ContainsEveryByteForAnySizesOfWrites) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "x";
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kPiece - 1, kPiece, kPiece + 1,
                                 2 * kPiece + 4096, 3 * kPiece - 7}) {
    const std::string bytes = pattern(size);
    for (const std::size_t step : {std::size_t{1000003}, size}) {
      AtomicFile file(path);
      for (std::size_t at = 0; at < size; at += step) {
        file.write(bytes.data() + at, std::min(step, size - at));
      }
      file.commit();
      EXPECT_TRUE(read_bytes(path) == bytes) << size << " bytes, " << step << " at a time";
    }
  }
}

TEST(AtomicFileTest, ContinuesAfterAFlushWithinAPiece) {
  const TemporaryFolder folder;
  const std::string bytes = pattern(2 * kPiece + 100);
  AtomicFile file(folder / "x");
  file.write(bytes.data(), 5);
  file.flush();
  file.write(bytes.data() + 5, bytes.size() - 5);
  file.commit();
  EXPECT_TRUE(read_bytes(folder / "x") == bytes);
}

TEST(AtomicFileTest, AFullDiskLeavesOnlyTheOldFile) {
  const TemporaryFolder folder;
  write_atomically(folder / "x", "old");
  const std::string bytes = pattern(2 * kPiece + 100);
  for (const std::size_t limit : {kPiece / 2, kPiece, kPiece + 4096, kPiece + 100, 2 * kPiece}) {
    const FileSizeLimit limited(limit);
    EXPECT_ERROR(
        write_atomically(folder / "x", bytes),
        "any previous file is unchanged. Raise the limit on the size of files (ulimit -f)");
  }
  EXPECT_EQ(read_bytes(folder / "x"), "old");
  EXPECT_EQ(folder.names(), Names{"x"});
}

TEST(AtomicFileTest, AnAbandonedFileLeavesNoNewFolder) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "old");
  { const AtomicFile file(folder / "old" / "x"); }
  { const AtomicFile file(folder / "new" / "x"); }
  EXPECT_EQ(folder.names(), Names{"old"});
}

/// Runs `work` in a child process that then exits as if killed, without running any destructor.
/// Returns its process id.
template <class Work>
pid_t in_a_child_that_dies(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return child;
}

TEST(AtomicFileTest, RemovesTheFilesOfAKilledProcess) {
  const TemporaryFolder folder;
  in_a_child_that_dies([&] {
    // Never freed: a killed process does not run destructors either.
    for (const std::string name : {"best.pt", "other"}) (new AtomicFile(folder / name))->flush();
  });
  ASSERT_EQ(folder.names().size(), 2U);
  AtomicFile(folder / "best.pt").commit();
  EXPECT_EQ(folder.names(), Names{"best.pt"});
}

TEST(AtomicFileTest, KeepsTheFilesOfLivingProcessesAndForeignFiles) {
  const TemporaryFolder folder;
  const std::string dead = std::to_string(in_a_child_that_dies([] {}));
  Names names = {".c.tmp-" + dead, ".d.tmp-x-1", ".e.tmp-" + dead + "-1.pt",
                 "f.tmp-" + dead + "-1"};
  for (const std::string& name : names) write_bytes(folder / name, "");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(folder / "a");
    (void)!::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  // The file is kept even if its process id means nothing here because the process runs on another
  // host or in a container.
  const std::string by_child = folder.names().front();
  ASSERT_TRUE(by_child.starts_with(".a.tmp-")) << by_child;
  names.push_back(".a.tmp-" + dead + "-7");
  std::filesystem::rename(folder / by_child, folder / names.back());

  remove_unfinished(folder.path());

  std::sort(names.begin(), names.end());
  EXPECT_EQ(folder.names(), names);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  for (const int end : ready) ::close(end);
}

// In a container, a program may have the same process id each time it starts.
TEST(AtomicFileTest, RemovesTheFilesOfAKilledProcessWithAReusedPid) {
  const TemporaryFolder folder;
  write_bytes(folder / (".best.pt.tmp-" + std::to_string(::getpid()) + "-0"), "half");
  write_bytes(folder / ".best.pt.tmp-1-0", "half");
  AtomicFile(folder / "best.pt").commit();
  EXPECT_EQ(folder.names(), Names{"best.pt"});
}

TEST(AtomicFileTest, ALinkIsKeptAndItsTargetReplaced) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "runs");
  write_bytes(folder / "runs" / "old.pt", "old");
  std::filesystem::create_symlink("runs/old.pt", folder / "first.pt");
  std::filesystem::create_symlink(folder / "first.pt", folder / "second.pt");
  std::filesystem::create_symlink("runs/new.pt", folder / "dangling.pt");
  for (const char* link : {"second.pt", "dangling.pt"}) {
    write_atomically(folder / link, "new");
    EXPECT_TRUE(std::filesystem::is_symlink(folder / link));
  }
  EXPECT_EQ(read_bytes(folder / "runs" / "old.pt"), "new");
  EXPECT_EQ(read_bytes(folder / "runs" / "new.pt"), "new");
  std::filesystem::create_symlink("circle.pt", folder / "circle.pt");
  EXPECT_THROW(AtomicFile(folder / "circle.pt").commit(), std::exception);
}

TEST(AtomicFileTest, APathThatIsNotAFileIsRefusedAndKept) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(AtomicFile(folder / "pipe"), "is not a regular file");
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
  std::filesystem::create_symlink("/dev/null", folder / "null");
  EXPECT_ERROR(AtomicFile(folder / "null"), "\"/dev/null\" is not a regular file");
}

TEST(AtomicFileTest, AFileIsNotMistakenForAnUnfinishedOneBeforeItIsLocked) {
  const TemporaryFolder folder;
  std::atomic<bool> is_over = false;
  std::vector<std::thread> removers;
  for (int i = 0; i < 3; ++i) {
    removers.emplace_back([&] {
      while (!is_over) remove_unfinished(folder.path());
    });
  }
  for (int i = 0; i < 200; ++i) EXPECT_NO_THROW(AtomicFile(folder / "x").commit());
  is_over = true;
  for (std::thread& remover : removers) remover.join();
  EXPECT_EQ(folder.names(), Names{"x"});
}

// The order of the system calls decides what a power failure leaves.

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
}  // namespace linkboy::testing::atomic_file_test
