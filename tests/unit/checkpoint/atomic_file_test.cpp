#include "checkpoint/atomic_file.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace linkboy::testing::atomic_file_test
