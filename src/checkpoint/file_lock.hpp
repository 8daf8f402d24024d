#pragma once

#include <chrono>
#include <filesystem>

#include "checkpoint/descriptor.hpp"

namespace linkboy {

// Advisory locks (`flock`) on open files. A lock is held until the last descriptor of the open file
// is closed. The kernel does that when the process ends, in whatever way. On a filesystem without
// locks nothing is locked, and no function fails for that.

/// Locks an open file. Returns 0, or the system's error: EWOULDBLOCK if another open file of any
/// process holds the lock.
int try_lock(const Descriptor& file);

/// Returns false if `path` no longer names the open file: it was replaced or removed since.
bool is_at(const Descriptor& file, const std::filesystem::path& path);

/// Locks the file of a tracker, which is made if it is not there. An atomic replacement passes the
/// lock on: see AtomicFile::commit.
/// @throws Error if another run or tracker holds the lock, or the file cannot be opened.
Descriptor lock_file(const std::filesystem::path& path);

/// Locks a folder, which is made if it is not there, by the file `.lock` in it. That file stays,
/// holds the name of the last owner and means nothing by itself.
/// @param patience  How long to wait for another owner.
/// @throws Error if another run still holds the lock, `.lock` is a link, or the folder cannot be
///         made or written to.
Descriptor lock_folder(const std::filesystem::path& folder,
                       std::chrono::milliseconds patience = {});

}  // namespace linkboy
