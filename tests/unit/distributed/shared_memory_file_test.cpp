#include "distributed/shared_memory.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace linkboy::shared_memory_file_test {
namespace {

TEST(SharedMemoryFileTest, CannotBeShrunk) {
  const auto memory = SharedMemoryFile::create(1 << 20);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(::truncate(memory->path().c_str(), 1), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_NE(SharedMemoryFile::open(memory->path(), 1 << 20), nullptr);
}

TEST(SharedMemoryFileTest, RefusesToOpenMemoryThatCouldShrink) {
  const int file = ::memfd_create("linkboy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(file, 4096), 0);
  const std::string path = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file);
  EXPECT_EQ(SharedMemoryFile::open(path, 4096), nullptr);
  ::close(file);
}

TEST(SharedMemoryFileTest, OpensOnlyMemoryOfThisLibrary) {
  const auto file = SharedMemoryFile::create(4096);
  ASSERT_TRUE(file);
  EXPECT_TRUE(SharedMemoryFile::open(file->path(), 4096));
  EXPECT_FALSE(SharedMemoryFile::open(file->path(), 8192)) << "the size differs";
  EXPECT_FALSE(SharedMemoryFile::open("/proc/self/exe", 4096));
  EXPECT_FALSE(SharedMemoryFile::open("/proc/self/fd/1000000", 4096));
}

}  // namespace
}  // namespace linkboy::shared_memory_file_test
