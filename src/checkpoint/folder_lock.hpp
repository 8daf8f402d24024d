#pragma once

#include <filesystem>

namespace linkboy {

/// An advisory lock on a folder, held while the object lives. The kernel releases it when the
/// process ends, in whatever way; the file `.lock` stays, and means nothing by itself. On a
/// filesystem without locks the folder is not locked.
class FolderLock {
 public:
  /// @throws Error if another object holds the lock, in this or another process, or the folder
  /// cannot
  ///         be made or written to.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace linkboy
