#include "checkpoint/folder_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <system_error>

#include "checkpoint/atomic_file.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

/// "process 4711 on host"
std::string name_of_this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return c10::str("process ", ::getpid(), " on ", host.data());
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) {
  const std::error_code error = create_folders(folder);
  LINKBOY_CHECK(!error, "cannot create the folder \"", folder.string(), "\" (", error.message(),
                "). Choose a path whose folder can be made.");
  const std::string path = (folder / ".lock").string();
  do {
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  } while (descriptor_ < 0 && errno == EINTR);
  LINKBOY_CHECK(descriptor_ >= 0, "cannot create \"", path, "\" (",
                std::generic_category().message(errno),
                "). Choose a folder that this process may write to.");
  int result = 0;
  do {
    result = ::flock(descriptor_, LOCK_EX | LOCK_NB);
  } while (result < 0 && errno == EINTR);
  if (result < 0 && errno == EWOULDBLOCK) {
    std::array<char, 512> holder{};
    const ssize_t size = ::pread(descriptor_, holder.data(), holder.size() - 1, 0);
    ::close(descriptor_);
    throw Error(c10::str("the folder \"", folder.string(), "\" is in use by another run (",
                         size > 0 ? holder.data() : "its process is not known",
                         "); one run at a time may save there. Wait for its end, end it, or choose "
                         "another folder."));
  }
  // The name is for the message above only; a full disk does not matter.
  const std::string name = name_of_this_process();
  if (::ftruncate(descriptor_, 0) == 0) {
    [[maybe_unused]] const ssize_t ignored = ::pwrite(descriptor_, name.data(), name.size(), 0);
  }
}

FolderLock::~FolderLock() { ::close(descriptor_); }

}  // namespace linkboy
