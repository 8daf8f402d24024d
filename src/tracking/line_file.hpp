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

/// All bytes of the file; empty if there is none.
/// @throws Error if `path` is something other than a regular file, or it cannot be read.
std::string read_old_file(const std::filesystem::path& path);

/// A file that an earlier run may have left, locked until it is replaced or read.
struct OldFile {
  Descriptor lock;
  std::string bytes;
};

/// Locks a tracker's file, then reads it: no other run can write in between. Makes the file if
/// there is none.
/// @throws Error as `lock_file` and `read_old_file`.
OldFile lock_old_file(const std::filesystem::path& path);

/// A text file that grows by whole records. Used by one thread.
class LineFile {
 public:
  /// What it holds between two records: the file, open and locked against a second writer; or
  /// nothing, where a run has too many files for that and has locked their folder.
  enum class Holds { the_file, nothing };

  explicit LineFile(std::filesystem::path path, Holds holds = Holds::the_file)
      : path_(std::move(path)), holds_(holds) {}

  const std::filesystem::path& path() const { return path_; }

  /// Closes the file, then as the function `lock_old_file`.
  OldFile lock_old();

  /// Makes the file one of `kept`, the first bytes of what it held, and `added`: by appending where
  /// it holds nothing else, otherwise by an atomic replacement, which needs room for both.
  /// @param lock  That of `lock_old`; none for a file that nobody else has.
  /// @throws Error as AtomicFile and `append`.
  void open(Descriptor lock, std::string_view kept, std::string_view added);

  /// Appends one or more records, by one write(2). @throws Error; the file then ends before them.
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

/// A record that was found in a file.
struct OldRecord {
  std::size_t begin = 0;  // offset of its first byte
  int64_t update = 0;
  int64_t epoch = 0;
  bool starts_run = false;  // from update 0
};

/// Where a run resumes, and which records of the attempt before are void.
class ResumePoint {
 public:
  explicit ResumePoint(const TrackedRun& run)
      : update_(run.first_update), epoch_(run.first_epoch) {}

  /// Whether the run resumes from a training state.
  bool is_resumed() const { return update_ > 0 || epoch_ > 0; }

  bool keeps(int64_t update, int64_t epoch) const {
    return update <= update_ && epoch <= epoch_ + 1;
  }

  /// The offset at which the void records begin, which are the last ones; `end` if there are none.
  std::size_t cut(const std::vector<OldRecord>& records, std::size_t end) const;

 private:
  int64_t update_;
  int64_t epoch_;
};

}  // namespace linkboy
