#pragma once

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>

#include "checkpoint/descriptor.hpp"

namespace linkboy {

/// Makes a folder and its parents, so that a power cut does not undo it.
/// @return The system's reason if it cannot be made.
/// @throws Error if the disk cannot be synced.
std::error_code create_folders(const std::filesystem::path& folder);

/// Removes the files that AtomicFile had begun in a folder and that no process writes any more. A
/// writer holds a lock on its file, also if it runs on another host and the folder is shared. On a
/// filesystem without locks nothing is removed.
void remove_unfinished(const std::filesystem::path& folder);

/// A file that appears at its path whole or not at all: written under another name in its
/// folder, fsynced and renamed by `commit`. A link at its path stays, and its target is
/// replaced. Destroyed before that, it leaves nothing behind; the next process that writes there
/// removes what a killed one left in the folder.
class AtomicFile {
 public:
  /// @throws Error if the file cannot be created, or something other than a file is there; parent
  /// folders are made.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends `size` bytes. @throws Error with the system's reason (a full disk, say).
  void write(const void* data, std::size_t size);

  /// Hands over to the system what `write` has gathered. @throws Error as `write` does.
  void flush();

  /// Makes the bytes durable and gives the file its name.
  /// @return The lock on the file (see file_lock.hpp), held since it was made. A caller that locked
  ///         the file that is replaced keeps this one instead, so that there is no time without.
  /// @throws Error; the old file then stays.
  Descriptor commit();

 private:
  bool set_direct(bool direct);

  std::filesystem::path path_;
  std::filesystem::path aside_;
  Descriptor descriptor_;
  std::unique_ptr<char[], decltype(&std::free)> buffer_{nullptr, &std::free};
  std::size_t buffered_ = 0;
  bool is_direct_ = false;  // past the page cache
};

}  // namespace linkboy
