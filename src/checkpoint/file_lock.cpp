// Locks files and folders, so that two runs do not write to the same place.

#include "checkpoint/file_lock.hpp"

#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/atomic_file.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;

/// Returns a text such as "process 4711 on host".
std::string name_of_this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return c10::str("process ", ::getpid(), " on ", host.data());
}

bool has_no_locks(int error) {
  return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

/// Opens and locks a file. Returns nullopt if another open file holds the lock.
std::optional<FileDescriptor> open_locked(const fs::path& path, int more_flags = 0) {
  while (true) {
    // Network filesystems lock only files that are open for writing. Other filesystems can also
    // lock another user's file that is open for reading.
    FileDescriptor file(path, O_RDWR | O_CREAT | more_flags);
    if (!file && errno == EACCES) file = FileDescriptor(path, O_RDONLY | more_flags);
    LINKBOY_CHECK_AS(FileError, file, "cannot open \"", path.string(), "\" (", system_reason(errno),
                     "). Choose a folder that this process may write to.");
    const int error = try_lock(file);
    if (error == EWOULDBLOCK) return std::nullopt;
    LINKBOY_CHECK_AS(FileError, error == 0 || has_no_locks(error), "cannot lock \"", path.string(),
                     "\" (", system_reason(error),
                     "). Check the filesystem, or choose another folder.");
    if (is_at(file, path)) return file;
  }
}

/// The lock file is overwritten, so it must not be a link to another file.
void check_is_no_link(const fs::path& path) {
  struct stat status {};
  const bool is_own =
      ::lstat(path.c_str(), &status) != 0 || (S_ISREG(status.st_mode) && status.st_nlink == 1);
  LINKBOY_CHECK_AS(
      FileError, is_own, "\"", path.string(),
      "\" is a link to another file, or not a regular file; the lock of a folder must be a "
      "separate regular file. Remove it.");
}

std::string holder_in(const fs::path& path) {
  const FileDescriptor file(path, O_RDONLY | O_NOFOLLOW);
  std::array<char, 512> text{};
  const ssize_t size = ::pread(file.get(), text.data(), text.size(), 0);
  if (size <= 0) return "its process is unknown";
  return printable(std::string_view(text.data(), static_cast<std::size_t>(size)));
}

}  // namespace

int try_lock(const FileDescriptor& file) {
  const int result = retry_if_interrupted([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); });
  return result == 0 ? 0 : errno;
}

bool is_at(const FileDescriptor& file, const fs::path& path) {
  struct stat here {};
  struct stat there {};
  const bool are_known = ::fstat(file.get(), &here) == 0 && ::stat(path.c_str(), &there) == 0;
  if (!are_known) return errno != ENOENT;
  return here.st_ino == there.st_ino && here.st_dev == there.st_dev;
}

FileDescriptor lock_file(const fs::path& path) {
  create_folder_of(path);
  check_is_replaceable(path);
  auto file = open_locked(path);
  LINKBOY_CHECK_AS(
      FileError, file, "\"", path.string(),
      "\" is being written by another run, or by another part of this one. Choose another "
      "path, or wait for that run to end.");
  return *std::move(file);
}

std::shared_ptr<void> lock_output_file(const fs::path& path) {
  return std::make_shared<FileDescriptor>(lock_file(path));
}

FileDescriptor lock_folder(const fs::path& folder) {
  const std::error_code error = create_folders(folder);
  LINKBOY_CHECK_AS(FileError, !error, "cannot create the folder \"", folder.string(), "\" (",
                   error.message(), "). Choose a path that can be created.");
  const fs::path path = folder / ".lock";
  check_is_no_link(path);
  auto lock = open_locked(path, O_NOFOLLOW);
  LINKBOY_CHECK_AS(
      FileError, lock, "the folder \"", folder.string(), "\" is in use by another run (",
      holder_in(path),
      "); only one run at a time can save there. Wait for it to end, stop it, or choose another "
      "folder.");
  check_is_no_link(path);
  // The name is only used in the message above, so a full disk does not matter.
  const std::string name = name_of_this_process();
  if (::ftruncate(lock->get(), 0) == 0) {
    [[maybe_unused]] const ssize_t ignored = ::pwrite(lock->get(), name.data(), name.size(), 0);
  }
  return *std::move(lock);
}

}  // namespace linkboy
