#include "atomic_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "linkboy/error.hpp"
#include "parse_number.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;

// What is gathered before it is written. Of such size pieces go straight to the disk: through the
// page cache they would push out what the data set is read from, and take longer. Alignment as any
// disk wants it.
constexpr std::size_t kPiece = std::size_t{4} << 20;
constexpr std::size_t kAlignment = 4096;
constexpr std::string_view kMark = ".tmp-";

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
  return folder_of(path) / ("." + stem + std::string(kMark) + std::to_string(::getpid()) + "-" +
                            std::to_string(counter.fetch_add(1)));
}

// The process that made it, from the end of its name: ".NAME.tmp-PID-NUMBER"; 0 for other names.
pid_t maker_of(const std::string& name) {
  const std::size_t mark = name.rfind(kMark);
  if (!name.starts_with('.') || mark == std::string::npos) return 0;
  const std::string_view numbers = std::string_view(name).substr(mark + kMark.size());
  const std::size_t dash = numbers.find('-');
  if (dash == std::string_view::npos) return 0;
  const auto process = parse_number<int64_t>(numbers.substr(0, dash));
  const auto number = parse_number<int64_t>(numbers.substr(dash + 1));
  const bool is_ours = process.value_or(0) > 0 && number.value_or(-1) >= 0;
  return is_ours ? static_cast<pid_t>(*process) : 0;
}

// Of killed processes. One that lives holds a lock on its file, also if it runs on another host and
// the folder is shared. Where a filesystem has no locks nothing is removed.
void remove_unfinished(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const pid_t maker = maker_of(entry->path().filename().string());
    if (maker == 0 || ::kill(maker, 0) == 0 || errno != ESRCH) continue;
    const int descriptor =
        ::open(entry->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) continue;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) ::unlink(entry->path().c_str());
    ::close(descriptor);
  }
}

// Once for each folder of a process: it costs a look at every name.
void remove_unfinished_once(const fs::path& folder) {
  static std::mutex mutex;
  static std::set<fs::path> seen;
  const std::scoped_lock lock(mutex);
  if (seen.insert(folder).second) remove_unfinished(folder);
}

// A second descriptor of an open file.
class LockKeeper {
 public:
  explicit LockKeeper(int descriptor) : descriptor_(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)) {}
  ~LockKeeper() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  LockKeeper(const LockKeeper&) = delete;
  LockKeeper& operator=(const LockKeeper&) = delete;

 private:
  int descriptor_;
};

// Without it the new name in its folder may be lost in a power cut although the bytes are there.
void sync_folder_of(const fs::path& path) {
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

std::error_code create_folders(const fs::path& folder) {
  std::error_code error;
  if (folder.empty() || fs::is_directory(folder, error)) return {};
  error.clear();  // it says that the folder is not there
  const fs::path path = folder.has_filename() ? folder : folder.parent_path();
  if (path.has_parent_path() && path.parent_path() != path)
    error = create_folders(path.parent_path());
  if (!error && fs::create_directory(path, error)) sync_folder_of(path);
  return error;
}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  LINKBOY_CHECK(path_.has_filename() && !fs::is_directory(path_, error), "\"", path_.string(),
                "\" names a folder; a file is needed. Add a file name.");
  error = create_folders(folder_of(path_));
  LINKBOY_CHECK(!error, "cannot create the folder of \"", path_.string(), "\" (", error.message(),
                "). Choose a path whose folder can be made.");
  buffer_.reset(static_cast<char*>(std::aligned_alloc(kAlignment, kPiece)));
  LINKBOY_CHECK(buffer_, "no memory is left to write \"", path_.string(), "\". Free some.");
  remove_unfinished_once(folder_of(path_));
  do {
    aside_ = name_beside(path_);
    descriptor_ = retry_if_interrupted(
        [this] { return ::open(aside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  } while (descriptor_ < 0 && errno == EEXIST);  // Left by a killed process of the same id.
  LINKBOY_CHECK(descriptor_ >= 0, "cannot create \"", path_.string(), "\" (", reason(errno),
                "). Choose a folder that this process may write to.");
  ::flock(descriptor_, LOCK_EX | LOCK_NB);  // for remove_unfinished; without locks it does nothing
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
  // Network filesystems report a full disk as late as here. A copy keeps the lock until the file
  // has its name.
  const LockKeeper lock(descriptor_);
  const int closed = ::close(std::exchange(descriptor_, -1));
  LINKBOY_CHECK(closed == 0 || errno == EINTR, "cannot finish \"", path_.string(), "\" (",
                reason(errno), "); what was there before is kept. Check the disk.");
  LINKBOY_CHECK(::rename(aside_.c_str(), path_.c_str()) == 0, "cannot replace \"", path_.string(),
                "\" (", reason(errno), "). Choose another path.");
  aside_.clear();
  sync_folder_of(path_);
}

}  // namespace linkboy
