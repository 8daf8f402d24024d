// Writes a file under another name, past the page cache, and renames it once its bytes are on disk.

#include "atomic_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "checkpoint/file_lock.hpp"
#include "linkboy/error.hpp"
#include "util/parse_number.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;

// Bytes are buffered up to this size before they are written. Pieces of this size bypass the page
// cache: writing through it would take longer and evict the files of the dataset. The alignment
// suits any disk.
constexpr std::size_t kPiece = std::size_t{4} << 20;
constexpr std::size_t kAlignment = 4096;
constexpr std::string_view kMark = ".tmp-";

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

fs::path name_beside(const fs::path& path) {
  static std::atomic<unsigned> counter = 0;
  // Truncated so that the name with its additions stays within the usual limit of 255 bytes.
  const std::string stem = path.filename().string().substr(0, 200);
  return folder_of(path) / ("." + stem + std::string(kMark) + std::to_string(::getpid()) + "-" +
                            std::to_string(counter.fetch_add(1)));
}

// Whether a name has the form that AtomicFile uses: ".NAME.tmp-PID-NUMBER".
bool is_name_beside(const std::string& name) {
  const std::size_t mark = name.rfind(kMark);
  if (!name.starts_with('.') || mark == std::string::npos) return false;
  const std::string_view numbers = std::string_view(name).substr(mark + kMark.size());
  const std::size_t dash = numbers.find('-');
  if (dash == std::string_view::npos) return false;
  return parse_number<int64_t>(numbers.substr(0, dash)).value_or(0) > 0 &&
         parse_number<int64_t>(numbers.substr(dash + 1)).value_or(-1) >= 0;
}

// Runs once per process and folder, because it looks at every name in the folder.
void remove_unfinished_once(const fs::path& folder) {
  static std::mutex mutex;
  static std::set<fs::path> seen;
  const std::scoped_lock lock(mutex);
  if (seen.insert(folder).second) remove_unfinished(folder);
}

// Follows the links at the end of `path`. The links stay, and their target is replaced.
fs::path target_of(fs::path path) {
  constexpr int kMostLinks = 40;  // as in the kernel
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, error); ++i) {
    path = folder_of(path) / fs::read_symlink(path, error);  // only the target if it is absolute
  }
  return path;
}

// Makes the new name durable. Otherwise a power failure may lose the name even if the bytes are on
// the disk.
void sync_folder_of(const fs::path& path) {
  const fs::path folder = folder_of(path);
  const FileDescriptor descriptor(folder, O_RDONLY | O_DIRECTORY);
  // A folder may be writable but not readable, and some filesystems refuse to sync one.
  if (!descriptor) return;
  const int result = retry_if_interrupted([&] { return ::fsync(descriptor.get()); });
  LINKBOY_CHECK_AS(FileError, result == 0 || errno == EINVAL || errno == ENOTSUP, "\"",
                   path.string(),
                   "\" was written, but a power failure may undo this: syncing its folder failed (",
                   system_reason(errno), "). Check the disk.");
}

}  // namespace

void remove_unfinished(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path& path = entry->path();
    if (!is_name_beside(path.filename().string())) continue;
    const FileDescriptor file(path, O_RDWR | O_NOFOLLOW);
    if (file && try_lock(file) == 0 && is_at(file, path)) ::unlink(path.c_str());
  }
}

std::error_code create_folders(const fs::path& folder) {
  std::error_code error;
  if (folder.empty() || fs::is_directory(folder, error)) return {};
  error.clear();  // is_directory has set it if the folder does not exist
  const fs::path path = folder.has_filename() ? folder : folder.parent_path();
  if (path.has_parent_path() && path.parent_path() != path)
    error = create_folders(path.parent_path());
  if (!error && fs::create_directory(path, error)) sync_folder_of(path);
  return error;
}

void create_folder_of(const fs::path& path) {
  const std::error_code error = create_folders(folder_of(path));
  LINKBOY_CHECK_AS(FileError, !error, "cannot create the folder of \"", path.string(), "\" (",
                   error.message(), "). Choose a path whose folder can be created.");
}

void check_is_replaceable(const fs::path& path) {
  std::error_code error;
  const fs::file_status present = fs::symlink_status(target_of(path), error);
  LINKBOY_CHECK_AS(FileError, !fs::exists(present) || fs::is_regular_file(present), "\"",
                   path.string(),
                   "\" is not a regular file. Choose the path of a new file or of a regular file.");
}

AtomicFile::AtomicFile(fs::path path) : path_(target_of(std::move(path))) {
  std::error_code error;
  LINKBOY_CHECK_AS(FileError, path_.has_filename() && !fs::is_directory(path_, error), "\"",
                   path_.string(),
                   "\" is the path of a folder; a file is needed. Add a file name.");
  check_is_replaceable(path_);
  is_folder_new_ = !fs::exists(folder_of(path_), error);
  create_folder_of(path_);
  buffer_.reset(static_cast<char*>(std::aligned_alloc(kAlignment, kPiece)));
  LINKBOY_CHECK_AS(FileError, buffer_, "there is not enough memory to write \"", path_.string(),
                   "\". Free some.");
  remove_unfinished_once(folder_of(path_));
  for (int num_removed = 0;;) {
    aside_ = name_beside(path_);
    descriptor_ = FileDescriptor(aside_, O_WRONLY | O_CREAT | O_EXCL);
    // Other processes may remove the folder while it is empty: see next_training_state_number.
    constexpr int kMostRemoved = 100;
    if (!descriptor_ && errno == ENOENT && ++num_removed < kMostRemoved) {
      create_folder_of(path_);
      continue;
    }
    // EEXIST: a killed process with the same id left a file with this name. Try the next name.
    LINKBOY_CHECK_AS(FileError, descriptor_ || errno == EEXIST, "cannot create \"", path_.string(),
                     "\" (", system_reason(errno),
                     "). Choose a folder that this process may write to.");
    // Before the file was locked, remove_unfinished in another process may have removed it.
    if (descriptor_ && try_lock(descriptor_) != EWOULDBLOCK && is_at(descriptor_, aside_)) return;
  }
}

AtomicFile::~AtomicFile() {
  descriptor_.close();
  if (aside_.empty()) return;
  ::unlink(aside_.c_str());
  if (is_folder_new_) ::rmdir(folder_of(path_).c_str());  // fails if it contains anything
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
    // Some filesystems refuse this; writes then go through the page cache.
    if (!is_direct_) is_direct_ = set_direct(true);
    flush();
  }
}

void AtomicFile::flush() {
  if (is_direct_ && buffered_ % kAlignment != 0) is_direct_ = !set_direct(false);
  for (std::size_t done = 0; done < buffered_;) {
    const ssize_t written = retry_if_interrupted(
        [&] { return ::write(descriptor_.get(), buffer_.get() + done, buffered_ - done); });
    // After a partial write, or on a disk with larger blocks, the rest goes through the page cache.
    if (written < 0 && errno == EINVAL && is_direct_ && set_direct(false)) {
      is_direct_ = false;
      continue;
    }
    const int error = written < 0 ? errno : ENOSPC;
    LINKBOY_CHECK_AS(FileError, written > 0, "cannot write \"", path_.string(), "\" (",
                     system_reason(error), "); any previous file is unchanged. ",
                     advice_after_write(error));
    done += static_cast<std::size_t>(written);
  }
  buffered_ = 0;
}

bool AtomicFile::set_direct(bool direct) {
  const int flags = ::fcntl(descriptor_.get(), F_GETFL);
  if (flags < 0) return false;
  return ::fcntl(descriptor_.get(), F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

FileDescriptor AtomicFile::commit() {
  flush();
  const int synced = retry_if_interrupted([this] { return ::fsync(descriptor_.get()); });
  LINKBOY_CHECK_AS(FileError, synced == 0, "cannot write \"", path_.string(), "\" to the disk (",
                   system_reason(errno), "); any previous file is unchanged. Check the disk.");
  // Network filesystems may report a full disk only when the file is closed.
  FileDescriptor lock = descriptor_.copy();
  const int closed = descriptor_.close();
  LINKBOY_CHECK_AS(FileError, closed == 0 || errno == EINTR, "cannot finish \"", path_.string(),
                   "\" (", system_reason(errno),
                   "); any previous file is unchanged. Check the disk.");
  LINKBOY_CHECK_AS(FileError, ::rename(aside_.c_str(), path_.c_str()) == 0, "cannot replace \"",
                   path_.string(), "\" (", system_reason(errno), "). Choose another path.");
  aside_.clear();
  sync_folder_of(path_);
  return lock;
}

}  // namespace linkboy
