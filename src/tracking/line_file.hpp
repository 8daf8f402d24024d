#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/file_descriptor.hpp"
#include "linkboy/tracking/tracker.hpp"

namespace linkboy {

/// The file of an earlier run, if any. It is locked until it is replaced or read.
struct OldFile {
  FileDescriptor lock;
  std::string bytes;
};

/// Locks a tracker's file and then reads it, so that no other run can write in between. Creates the
/// file if it does not exist.
/// @throws FileError if `path` is not a regular file, cannot be read or is locked.
OldFile lock_old_file(const std::filesystem::path& path);

/// A record from an existing file.
struct OldRecord {
  std::size_t begin = 0;  // offset of its first byte
  int64_t update = 0;
  int64_t epoch = 0;
  bool starts_run = false;  // at update 0
};

/// Whether a run continues earlier records.
inline bool continues_records(const TrackedRun& run) {
  return run.is_resumed || run.first_update > 0 || run.first_epoch > 0;
}

/// Whether a run that continues earlier records keeps this one. Later records are obsolete.
inline bool keeps(const TrackedRun& run, const OldRecord& record) {
  return record.update <= run.first_update && record.epoch <= run.first_epoch + 1;
}

/// The format of a file with one record after another.
struct LineFormat {
  /// The beginning of each file; may be empty.
  std::string_view header;
  /// Returns the size of the first record including its line break, or 0 if it is incomplete.
  std::size_t (*record_size)(std::string_view text);
  /// Returns a record without `begin`, or nothing if it is damaged.
  std::optional<OldRecord> (*parse)(std::string_view record);
  /// "a table that CsvTracker wrote"
  const char* description;
};

/// A text file to which complete records are appended. Not thread-safe.
class LineFile {
 public:
  explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}

  /// Locks and opens the file of a tracker. A resumed run keeps the records up to its training
  /// state, a new run those of earlier runs if it appends. Records that were damaged, for example
  /// by a power failure, are dropped.
  /// @param added  The first record of the run; may be empty.
  /// @throws Error if the file cannot be written, if another run is writing it, or if its first
  ///         record does not have the format. The file is then unchanged.
  void start(const TrackedRun& run, bool append, const LineFormat& format, std::string_view added);

  /// Opens the file with the contents `kept`, the first bytes of the old contents, followed by
  /// `added`. If `kept` is all of the old contents, appends `added`. Otherwise replaces the file
  /// atomically, which needs disk space for both.
  /// @param lock  The lock from `lock_old_file`; empty for a file that no other run uses.
  /// @throws The errors of AtomicFile and `append`.
  void open(FileDescriptor lock, std::string_view kept, std::string_view added);

  /// Appends one or more records with a single write(2).
  /// @throws FileError; the file then ends before these records.
  void append(std::string_view records);

  void close();

 private:
  std::filesystem::path path_;
  FileDescriptor lock_;
  FileDescriptor file_;
  int64_t size_ = 0;
};

}  // namespace linkboy
