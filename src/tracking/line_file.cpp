#include "line_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "checkpoint/atomic_file.hpp"
#include "checkpoint/file_bytes.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;

std::string reason(int error) { return std::generic_category().message(error); }

class UniqueDescriptor {
 public:
  explicit UniqueDescriptor(int descriptor) : descriptor_(descriptor) {}
  ~UniqueDescriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  UniqueDescriptor(const UniqueDescriptor&) = delete;
  UniqueDescriptor& operator=(const UniqueDescriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// The kernel releases it with the descriptor, so that a killed run leaves nothing behind. Some
// filesystems have no locks; then two writers are not noticed.
void lock(int descriptor, const fs::path& path) {
  if (descriptor < 0 || ::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return;
  LINKBOY_CHECK(errno != EWOULDBLOCK, "\"", path.string(),
                "\" is being written by another run, or by another tracker of this one. Choose "
                "another path, or wait for the end of that run.");
}

}  // namespace

std::string read_old_file(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error) && !error) return "";
  // A device would be replaced by a file otherwise.
  LINKBOY_CHECK(fs::is_regular_file(path, error), "\"", path.string(),
                "\" is not a regular file. Choose the path of a file, new or old.");
  try {
    const auto file = FileBytes::open(path, /*mmap=*/false);
    return file->text(0, file->size());
  } catch (const Error& cause) {
    throw Error(c10::str("cannot read \"", path.string(), "\": ", cause.what()));
  }
}

void LineFile::open(std::string_view kept, std::string_view added) {
  close();
  bool is_kept_whole = false;
  {
    const UniqueDescriptor old(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (holds_ == Holds::the_file) lock(old.get(), path_);
    std::error_code error;
    is_kept_whole = !kept.empty() && fs::file_size(path_, error) == kept.size();
    if (!is_kept_whole) {
      AtomicFile file(path_);
      file.write(kept.data(), kept.size());
      file.write(added.data(), added.size());
      file.commit();
    }
  }
  size_ = static_cast<int64_t>(kept.size() + (is_kept_whole ? 0 : added.size()));
  is_open_ = true;
  if (holds_ == Holds::the_file) {
    descriptor_ = reopen();
    lock(descriptor_, path_);
  }
  if (is_kept_whole) append(added);
}

int LineFile::reopen() const {
  const int descriptor = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  LINKBOY_CHECK(descriptor >= 0, "cannot open \"", path_.string(), "\" (", reason(errno),
                "). Choose a folder that this process may write to.");
  return descriptor;
}

void LineFile::append(std::string_view records) {
  LINKBOY_CHECK(is_open_, "\"", path_.string(), "\" is not open. Call the tracker's start first.");
  const UniqueDescriptor reopened(holds_ == Holds::nothing ? reopen() : -1);
  const int descriptor = holds_ == Holds::nothing ? reopened.get() : descriptor_;
  for (std::string_view rest = records; !rest.empty();) {
    const ssize_t written = ::write(descriptor, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      // Part of a record would garble the next one. If this fails too, so will the next write.
      [[maybe_unused]] const int truncated = ::ftruncate(descriptor, size_);
      throw Error(c10::str("cannot write \"", path_.string(), "\" (", reason(error),
                           "); what was recorded before is kept. Free space or choose another "
                           "folder."));
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  size_ += static_cast<int64_t>(records.size());
}

void LineFile::close() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  is_open_ = false;
}

std::size_t ResumePoint::cut(const std::vector<OldRecord>& records, std::size_t end) const {
  std::size_t count = records.size();
  for (; count > 0; --count) {
    const OldRecord& last = records[count - 1];
    if (last.starts_run || keeps(last.update, last.epoch)) break;
    // Updates only grow in a run: what comes before is of an earlier one.
    if (count < records.size() && last.update > records[count].update) break;
  }
  return count < records.size() ? records[count].begin : end;
}

}  // namespace linkboy
