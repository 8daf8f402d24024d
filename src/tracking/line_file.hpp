#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/descriptor.hpp"
#include "linkboy/tracking/tracker.hpp"

namespace linkboy {

/// Returns all bytes of the file, or an empty string if the file does not exist.
/// @throws FileError if `path` is not a regular file or cannot be read.
std::string read_old_file(const std::filesystem::path& path);

/// The file of an earlier run, if any. It is locked until it is replaced or read.
struct OldFile {
  Descriptor lock;
  std::string bytes;
};

/// Locks a tracker's file and then reads it, so that no other run can write in between. Creates the
/// file if it does not exist.
/// @throws The errors of `lock_file` and `read_old_file`.
OldFile lock_old_file(const std::filesystem::path& path);

/// A text file to which complete records are appended. Not thread-safe.
class LineFile {
 public:
  /// Whether the file stays open between two records. If it does, it is also locked against a
  /// second writer. Use `nothing` for a run that has too many files and locks their folder instead.
  enum class Holds { the_file, nothing };

  explicit LineFile(std::filesystem::path path, Holds holds = Holds::the_file)
      : path_(std::move(path)), holds_(holds) {}

  const std::filesystem::path& path() const { return path_; }

  /// Closes the file, then calls the function `lock_old_file`.
  OldFile lock_old();

  /// Opens the file with the contents `kept`, the first bytes of the old contents, followed by
  /// `added`. If `kept` is all of the old contents, appends `added`. Otherwise replaces the file
  /// atomically, which needs disk space for both.
  /// @param lock  The lock from `lock_old`; empty for a file that no other run uses.
  /// @throws The errors of AtomicFile and `append`.
  void open(Descriptor lock, std::string_view kept, std::string_view added);

  /// Appends one or more records with a single write(2).
  /// @throws FileError; the file then ends before these records.
  void append(std::string_view records);

  bool is_open() const { return is_open_; }
  void close();

 private:
  Descriptor reopen() const;

  std::filesystem::path path_;
  Holds holds_;
  Descriptor lock_;
  Descriptor file_;
  bool is_open_ = false;
  int64_t size_ = 0;
};

/// A record from an existing file.
struct OldRecord {
  std::size_t begin = 0;  // offset of its first byte
  int64_t update = 0;
  int64_t epoch = 0;
  bool starts_run = false;  // at update 0
};

/// The point at which a run resumes. Determines which records of the previous attempt are obsolete.
class ResumePoint {
 public:
  explicit ResumePoint(const TrackedRun& run)
      : update_(run.first_update), epoch_(run.first_epoch) {}

  /// Whether the run resumes from a training state.
  bool is_resumed() const { return update_ > 0 || epoch_ > 0; }

  bool keeps(int64_t update, int64_t epoch) const {
    return update <= update_ && epoch <= epoch_ + 1;
  }

  /// Returns the offset of the first of the obsolete records at the end of the file, or `end` if
  /// there are none.
  std::size_t cut(const std::vector<OldRecord>& records, std::size_t end) const;

 private:
  int64_t update_;
  int64_t epoch_;
};

}  // namespace linkboy
