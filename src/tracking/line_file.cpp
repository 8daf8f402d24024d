// Appends records to a locked text file, and finds those that a resumed run keeps.

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

struct OldRecords {
  std::string text{};  // the header and all complete records
  std::vector<OldRecord> places{};
};

/// Reads the records of an earlier run. Returns nothing if another program wrote the file: its
/// header or its first record differs.
std::optional<OldRecords> read_records(std::string_view text, const LineFormat& format) {
  const bool is_cut = text.empty() || text.size() < format.header.size();
  if (is_cut && format.header.starts_with(text)) return OldRecords{};
  if (!text.starts_with(format.header)) return std::nullopt;
  OldRecords old{.text = std::string(format.header)};
  text.remove_prefix(format.header.size());
  for (std::size_t size; (size = format.record_size(text)) != 0; text.remove_prefix(size)) {
    if (auto record = format.parse(text.substr(0, size))) {
      record->begin = old.text.size();
      old.places.push_back(*record);
      old.text += text.substr(0, size);
    } else if (old.places.empty()) {
      return std::nullopt;
    }
  }
  if (old.text.empty()) return std::nullopt;  // neither a header nor a record
  return old;
}

/// Returns the offset of the first of the obsolete records at the end of the file, or the end.
std::size_t end_of_kept(const OldRecords& old, const TrackedRun& run) {
  const std::vector<OldRecord>& records = old.places;
  std::size_t count = records.size();
  for (; count > 0; --count) {
    const OldRecord& last = records[count - 1];
    if (last.starts_run || keeps(run, last)) break;
    // Updates never decrease within a run, so the records before it belong to an earlier run.
    if (count < records.size() && last.update > records[count].update) break;
  }
  return count < records.size() ? records[count].begin : old.text.size();
}

}  // namespace

OldFile lock_old_file(const fs::path& path) {
  FileDescriptor lock = lock_file(path);
  try {
    const auto file = FileBytes::open(path, /*mmap=*/false);
    return {std::move(lock), file->text(0, file->size())};
  } catch (const Error& cause) {
    throw FileError(c10::str("cannot read \"", path.string(), "\": ", cause.what()));
  }
}

void LineFile::start(const TrackedRun& run, bool append, const LineFormat& format,
                     std::string_view added) {
  close();
  OldFile old = lock_old_file(path_);
  std::optional<OldRecords> records = read_records(old.bytes, format);
  LINKBOY_CHECK(records, "\"", path_.string(), "\" is not ", format.description,
                ". Choose another path, or move the file away.");
  std::size_t kept = append ? records->text.size() : 0;
  if (continues_records(run)) kept = end_of_kept(*records, run);
  records->text.resize(kept);
  open(std::move(old.lock), records->text, c10::str(kept == 0 ? format.header : "", added));
}

void LineFile::open(FileDescriptor lock, std::string_view kept, std::string_view added) {
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
  lock_ = std::move(lock);
  file_ = FileDescriptor(path_, O_WRONLY | O_APPEND);
  LINKBOY_CHECK_AS(FileError, file_, "cannot open \"", path_.string(), "\" (", system_reason(errno),
                   "). Choose a folder that this process may write to.");
  if (is_kept_whole) append(added);
}

void LineFile::append(std::string_view records) {
  LINKBOY_CHECK_AS(FileError, file_, "\"", path_.string(),
                   "\" is not open. Call the tracker's start first.");
  for (std::string_view rest = records; !rest.empty();) {
    const ssize_t written =
        retry_if_interrupted([&] { return ::write(file_.get(), rest.data(), rest.size()); });
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      // An incomplete record would damage the next one. If truncating fails too, the next write
      // fails as well.
      [[maybe_unused]] const int truncated = ::ftruncate(file_.get(), size_);
      throw FileError(c10::str("cannot write \"", path_.string(), "\" (", system_reason(error),
                               "); earlier records are kept. ", advice_after_write(error)));
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  size_ += static_cast<int64_t>(records.size());
}

void LineFile::close() {
  file_ = FileDescriptor();
  lock_ = FileDescriptor();
}

}  // namespace linkboy
