#pragma once

#include <filesystem>

#include "checkpoint/file_descriptor.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

// Advisory locks (`flock`) on open files. A lock is held until the last descriptor of the open file
// is closed. The kernel closes it when the process ends, even if the process is killed. On a
// filesystem without locks, nothing is locked, and lock_file and lock_folder succeed.

/// Locks an open file without waiting. Returns 0 or the system's error number: EWOULDBLOCK if
/// another open file of this or another process holds the lock.
LINKBOY_API int try_lock(const FileDescriptor& file);

/// Returns whether `path` still names the open file: false if the file was replaced or removed
/// since. If this cannot be determined, returns true.
LINKBOY_API bool is_at(const FileDescriptor& file, const std::filesystem::path& path);

/// Locks a tracker's file, and creates it if it does not exist. An atomic replacement passes the
/// lock on: see AtomicFile::commit.
/// @throws FileError if another run or tracker holds the lock, if the path names something other
///         than a regular file, or if the file cannot be created, opened or locked.
LINKBOY_API FileDescriptor lock_file(const std::filesystem::path& path);

/// Locks a folder with the file `.lock` in it, and creates the folder if it does not exist. The
/// file remains and contains the name of the last owner; its existence does not mean that the
/// folder is locked.
/// @throws FileError if another run still holds the lock, if `.lock` is a link or not a regular
///         file, or if the folder cannot be created or written to.
LINKBOY_API FileDescriptor lock_folder(const std::filesystem::path& folder);

}  // namespace linkboy
