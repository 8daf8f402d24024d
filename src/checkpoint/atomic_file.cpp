#include "atomic_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;

// What is gathered before it is written. Of such size pieces go straight to the disk: through the
// page cache they would push out what the data set is read from, and take longer. Alignment as any
// disk wants it.
constexpr std::size_t kPiece = std::size_t{4} << 20;
constexpr std::size_t kAlignment = 4096;

std::string reason(int error) { return std::generic_category().message(error); }

template <typename Call>
auto retry_if_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

fs::path name_beside(const fs::path& path) {
  static std::atomic<unsigned> counter = 0;
  // Short enough that the addition keeps the name within the usual limit of 255 bytes.
  const std::string stem = path.filename().string().substr(0, 200);
  return folder_of(path) / ("." + stem + ".tmp-" + std::to_string(::getpid()) + "-" +
                            std::to_string(counter.fetch_add(1)));
}

// Without it the new name may be lost in a power cut although the bytes are there.
void sync_folder(const fs::path& path) {
  const fs::path folder = folder_of(path);
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // A folder may be writable but not readable, and some filesystems refuse to sync one.
  if (descriptor < 0) return;
  const int result = retry_if_interrupted([&] { return ::fsync(descriptor); });
  const int error = errno;
  ::close(descriptor);
  LINKBOY_CHECK(result == 0 || error == EINVAL || error == ENOTSUP, "\"", path.string(),
                "\" is written, but a power cut may undo that: syncing its folder failed (",
                reason(error), "). Check the disk.");
}

}  // namespace

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  LINKBOY_CHECK(path_.has_filename() && !fs::is_directory(path_, error), "\"", path_.string(),
                "\" names a folder; a file is needed. Add a file name.");
  fs::create_directories(folder_of(path_), error);
  LINKBOY_CHECK(!error, "cannot create the folder of \"", path_.string(), "\" (", error.message(),
                "). Choose a path whose folder can be made.");
  do {
    aside_ = name_beside(path_);
    descriptor_ = retry_if_interrupted(
        [this] { return ::open(aside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  } while (descriptor_ < 0 && errno == EEXIST);  // Left by a killed process of the same id.
  LINKBOY_CHECK(descriptor_ >= 0, "cannot create \"", path_.string(), "\" (", reason(errno),
                "). Choose a folder that this process may write to.");
  buffer_.reset(static_cast<char*>(std::aligned_alloc(kAlignment, kPiece)));
  LINKBOY_CHECK(buffer_, "no memory is left to write \"", path_.string(), "\". Free some.");
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!aside_.empty()) ::unlink(aside_.c_str());
}

void AtomicFile::write(const void* data, std::size_t size) {
  const auto* next = static_cast<const char*>(data);
  while (size > 0) {
    const std::size_t chunk = std::min(size, kPiece - buffered_);
    std::memcpy(buffer_.get() + buffered_, next, chunk);
    buffered_ += chunk;
    next += chunk;
    size -= chunk;
    if (buffered_ < kPiece) return;
    // Some filesystems refuse, and write through the page cache then.
    if (!is_direct_) is_direct_ = set_direct(true);
    flush();
  }
}

void AtomicFile::flush() {
  if (is_direct_ && buffered_ % kAlignment != 0) is_direct_ = !set_direct(false);
  for (std::size_t done = 0; done < buffered_;) {
    const ssize_t written = retry_if_interrupted(
        [&] { return ::write(descriptor_, buffer_.get() + done, buffered_ - done); });
    // After part of a piece, or on a disk with larger blocks, the rest goes the usual way.
    if (written < 0 && errno == EINVAL && is_direct_ && set_direct(false)) {
      is_direct_ = false;
      continue;
    }
    LINKBOY_CHECK(written > 0, "cannot write \"", path_.string(), "\" (",
                  reason(written < 0 ? errno : ENOSPC),
                  "); what was there before is kept. Free space or choose another folder.");
    done += static_cast<std::size_t>(written);
  }
  buffered_ = 0;
}

bool AtomicFile::set_direct(bool direct) {
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags < 0) return false;
  return ::fcntl(descriptor_, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

void AtomicFile::commit() {
  flush();
  const int synced = retry_if_interrupted([this] { return ::fsync(descriptor_); });
  LINKBOY_CHECK(synced == 0, "cannot write \"", path_.string(), "\" to the disk (", reason(errno),
                "); what was there before is kept. Check the disk.");
  // Network filesystems report a full disk as late as here.
  const int closed = ::close(std::exchange(descriptor_, -1));
  LINKBOY_CHECK(closed == 0 || errno == EINTR, "cannot finish \"", path_.string(), "\" (",
                reason(errno), "); what was there before is kept. Check the disk.");
  LINKBOY_CHECK(::rename(aside_.c_str(), path_.c_str()) == 0, "cannot replace \"", path_.string(),
                "\" (", reason(errno), "). Choose another path.");
  aside_.clear();
  sync_folder(path_);
}

}  // namespace linkboy
