#pragma once

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>

#include "checkpoint/file_descriptor.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Creates a folder and its missing parents, and syncs them, so that a power failure cannot undo
/// this.
/// @return The system's error if a folder cannot be created.
/// @throws FileError if a folder cannot be synced.
std::error_code create_folders(const std::filesystem::path& folder);

/// Creates the missing parent folders of a file.
/// @throws FileError if that fails.
void create_folder_of(const std::filesystem::path& path);

/// Checks that an atomic replacement would not replace a device or a pipe.
/// @throws FileError if `path` exists and is not a regular file.
void check_is_replaceable(const std::filesystem::path& path);

/// Removes the unfinished files of AtomicFile from a folder, except those that a process is still
/// writing. A writer holds a lock on its file, which other hosts that share the folder also see. On
/// a filesystem without locks, removes nothing.
void remove_unfinished(const std::filesystem::path& folder);

/// A file that appears at its path completely or not at all. It is written under another name in
/// the same folder; `commit` syncs and renames it. If the path is a link, the link stays, and its
/// target is replaced. If a process is killed, the next process that writes to the folder removes
/// its unfinished files.
class LINKBOY_API AtomicFile {
 public:
  /// Creates missing parent folders.
  /// @throws FileError if the file cannot be created, or if the path names something other than a
  ///         regular file.
  explicit AtomicFile(std::filesystem::path path);
  /// Without `commit`, removes the incomplete file, and its folder (but no parent of it) if this
  /// object created it.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends `size` bytes.
  /// @throws FileError with the system's reason, such as a full disk.
  void write(const void* data, std::size_t size);

  /// Passes the bytes that `write` has buffered to the system.
  /// @throws The same errors as `write`.
  void flush();

  /// Syncs the bytes to the disk and renames the file to its path.
  /// @return The lock on the file (see file_lock.hpp), which has been held since its creation. A
  ///         caller that holds a lock on the replaced file should hold this one instead, so that
  ///         the path is always locked.
  /// @throws FileError if a step fails. The old file is then unchanged, unless only the folder
  ///         could not be synced.
  FileDescriptor commit();

 private:
  bool set_direct(bool direct);

  std::filesystem::path path_;
  std::filesystem::path aside_;
  FileDescriptor descriptor_;
  std::unique_ptr<char[], decltype(&std::free)> buffer_{nullptr, &std::free};
  std::size_t buffered_ = 0;
  bool is_folder_new_ = false;
  bool is_direct_ = false;  // whether writes bypass the page cache
};

}  // namespace linkboy
