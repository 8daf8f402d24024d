#include "line_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "checkpoint/atomic_file.hpp"
#include "checkpoint/file_bytes.hpp"
#include "checkpoint/file_lock.hpp"
#include "linkboy/error.hpp"

namespace linkboy {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::string read_old_file(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error) && !error) return "";
  // Otherwise, a file would replace a device.
  LINKBOY_CHECK_AS(FileError, fs::is_regular_file(path, error), "\"", path.string(),
                   "\" is not a regular file. Choose the path of a new file or of a regular file.");
  try {
    const auto file = FileBytes::open(path, /*mmap=*/false);
    return file->text(0, file->size());
  } catch (const Error& cause) {
    throw FileError(c10::str("cannot read \"", path.string(), "\": ", cause.what()));
  }
}

OldFile lock_old_file(const fs::path& path) {
  Descriptor lock = lock_file(path);
  return {std::move(lock), read_old_file(path)};
}

OldFile LineFile::lock_old() {
  close();
  return lock_old_file(path_);
}

void LineFile::open(Descriptor lock, std::string_view kept, std::string_view added) {
  close();
  std::error_code error;
  const bool is_kept_whole = !kept.empty() && fs::file_size(path_, error) == kept.size();
  if (!is_kept_whole) {
    AtomicFile file(path_);
    file.write(kept.data(), kept.size());
    file.write(added.data(), added.size());
    lock = file.commit();
  }
  size_ = static_cast<int64_t>(kept.size() + (is_kept_whole ? 0 : added.size()));
  if (holds_ == Holds::the_file) {
    lock_ = std::move(lock);
    file_ = reopen();
  }
  is_open_ = true;
  if (is_kept_whole) append(added);
}

Descriptor LineFile::reopen() const {
  Descriptor file(path_, O_WRONLY | O_APPEND);
  LINKBOY_CHECK_AS(FileError, file, "cannot open \"", path_.string(), "\" (", system_reason(errno),
                   "). Choose a folder that this process may write to.");
  return file;
}

void LineFile::append(std::string_view records) {
  LINKBOY_CHECK_AS(FileError, is_open_, "\"", path_.string(),
                   "\" is not open. Call the tracker's start first.");
  const Descriptor reopened = holds_ == Holds::nothing ? reopen() : Descriptor();
  const int descriptor = reopened ? reopened.get() : file_.get();
  for (std::string_view rest = records; !rest.empty();) {
    const ssize_t written =
        retry_if_interrupted([&] { return ::write(descriptor, rest.data(), rest.size()); });
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      // An incomplete record would damage the next one. If truncating fails too, the next write
      // fails as well.
      [[maybe_unused]] const int truncated = ::ftruncate(descriptor, size_);
      throw FileError(c10::str("cannot write \"", path_.string(), "\" (", system_reason(error),
                               "); earlier records are kept. ", advice_after_write(error)));
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  size_ += static_cast<int64_t>(records.size());
}

void LineFile::close() {
  file_ = Descriptor();
  lock_ = Descriptor();
  is_open_ = false;
}

std::size_t ResumePoint::cut(const std::vector<OldRecord>& records, std::size_t end) const {
  std::size_t count = records.size();
  for (; count > 0; --count) {
    const OldRecord& last = records[count - 1];
    if (last.starts_run || keeps(last.update, last.epoch)) break;
    // Updates never decrease within a run, so the records before it belong to an earlier run.
    if (count < records.size() && last.update > records[count].update) break;
  }
  return count < records.size() ? records[count].begin : end;
}

}  // namespace linkboy
