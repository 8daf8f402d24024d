// Memory without a name (memfd) that other processes open through this one, with locks that show
// whether a process is alive.

#include "distributed/shared_memory_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

namespace linkboy {
namespace {

constexpr const char* kMemoryName = "linkboy";

struct flock write_lock(int64_t byte) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  return lock;
}

/// Reserves the pages now. Otherwise a write would kill the process if no memory is free.
bool give_size(int file, std::size_t bytes) {
  rlimit limit{};
  // Beyond this limit, the kernel sends a signal.
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes > limit.rlim_cur) return false;
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  return error == 0;
}

}  // namespace

SharedMemoryFile::SharedMemoryFile(int file, std::byte* data, std::size_t bytes)
    : file_(file), data_(data), bytes_(bytes) {}

SharedMemoryFile::~SharedMemoryFile() {
  munmap(data_, bytes_);
  close(file_);
}

std::unique_ptr<SharedMemoryFile> SharedMemoryFile::map(int file, std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) {
    close(file);
    return nullptr;
  }
  return std::unique_ptr<SharedMemoryFile>(
      new SharedMemoryFile(file, static_cast<std::byte*>(data), bytes));
}

std::unique_ptr<SharedMemoryFile> SharedMemoryFile::create(std::size_t bytes) {
  const int file = memfd_create(kMemoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return nullptr;
  // If another process shrank the file, an access beyond its end would kill every rank.
  if (!give_size(file, bytes) || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    close(file);
    return nullptr;
  }
  return map(file, bytes);
}

std::unique_ptr<SharedMemoryFile> SharedMemoryFile::open(const std::string& path,
                                                         std::size_t bytes) {
  // Opening a file of another kind may have side effects.
  std::array<char, 64> target{};
  if (readlink(path.c_str(), target.data(), target.size() - 1) < 0) return nullptr;
  if (!std::string_view(target.data()).starts_with(std::string("/memfd:") + kMemoryName))
    return nullptr;
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  struct stat status {};
  const int seals = fcntl(file, F_GET_SEALS);
  if (fstat(file, &status) != 0 || status.st_size != static_cast<off_t>(bytes) || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    close(file);
    return nullptr;
  }
  return map(file, bytes);
}

std::string SharedMemoryFile::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file_);
}

bool SharedMemoryFile::lock(int64_t byte) {
  const struct flock lock = write_lock(byte);
  return fcntl(file_, F_SETLK, &lock) == 0;
}

bool SharedMemoryFile::is_locked_by_other(int64_t byte) const {
  struct flock lock = write_lock(byte);
  return fcntl(file_, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace linkboy
