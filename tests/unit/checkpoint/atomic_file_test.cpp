#include "checkpoint/atomic_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/file_size_limit.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::atomic_file_test {
namespace {

constexpr std::size_t kPiece = std::size_t{4} << 20;  // what AtomicFile writes at a time

std::string pattern(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 + (i >> 12));
  return bytes;
}

// Around the sizes at which writing goes past the page cache, and back for what is left.
TEST(AtomicFileTest, HoldsEveryByteWhateverTheSizesOfTheWrites) {
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

TEST(AtomicFileTest, GoesOnAfterAFlushInMidPiece) {
  const TemporaryFolder folder;
  const std::string bytes = pattern(2 * kPiece + 100);
  AtomicFile file(folder / "x");
  file.write(bytes.data(), 5);
  file.flush();
  file.write(bytes.data() + 5, bytes.size() - 5);
  file.commit();
  EXPECT_TRUE(read_bytes(folder / "x") == bytes);
}

TEST(AtomicFileTest, LeavesOldFileAndNothingElseWhenADiskFillsUpInAnyPiece) {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder / "x");
    file.write("old", 3);
    file.commit();
  }
  const std::string bytes = pattern(2 * kPiece + 100);
  for (const std::size_t limit : {kPiece / 2, kPiece, kPiece + 4096, kPiece + 100, 2 * kPiece}) {
    AtomicFile file(folder / "x");
    const FileSizeLimit limited(limit);
    EXPECT_ERROR(
        {
          file.write(bytes.data(), bytes.size());
          file.commit();
        },
        "what was there before is kept");
  }
  EXPECT_EQ(read_bytes(folder / "x"), "old");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x"});
}

/// Runs `work` in a child that then dies as if killed, without any destructor.
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

TEST(AtomicFileTest, RemovesWhatAKilledProcessLeftInTheFolder) {
  const TemporaryFolder folder;
  in_a_child_that_dies([&] {
    // Never freed, like the memory of a process that is killed.
    for (const std::string name : {"best.pt", "other"}) (new AtomicFile(folder / name))->flush();
  });
  ASSERT_EQ(folder.names().size(), 2U);
  {
    AtomicFile file(folder / "best.pt");
    file.commit();
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"best.pt"});
}

TEST(AtomicFileTest, LeavesTheFilesOfLivingProcessesAndOfOthersAlone) {
  const TemporaryFolder folder;
  const std::string dead = std::to_string(in_a_child_that_dies([] {}));
  const std::vector<std::string> others = {
      ".a.tmp-" + std::to_string(::getpid()) + "-0",  // of a process that lives
      ".b.tmp-" + dead + "-7",                        // locked, as by a process on another host
      ".c.tmp-" + dead,
      ".d.tmp-x-1",
      ".e.tmp-" + dead + "-1.pt",
      "f.tmp-" + dead + "-1"};
  for (const std::string& name : others) write_bytes(folder / name, "");
  const int locked = ::open((folder / others[1]).c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(locked, LOCK_EX), 0);
  AtomicFile(folder / "x").commit();
  ::close(locked);
  std::vector<std::string> expected = others;
  expected.emplace_back("x");
  EXPECT_EQ(folder.names(), expected);
}

}  // namespace
}  // namespace linkboy::testing::atomic_file_test
