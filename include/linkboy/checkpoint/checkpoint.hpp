#pragma once

#include <filesystem>
#include <memory>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Writes `contents` to `path` in the layout of Python's `torch.save`, so that
/// `torch.load(path, weights_only=True)` can read it, also with `mmap=True`.
///
/// Writes a temporary file, fsyncs it and renames it: whenever the process is killed, `path` has
/// either its previous contents or all of `contents`. Copies tensors on a device to the CPU first,
/// and writes tensors that share a storage once. Creates missing parent folders.
///
/// @throws FileError if the file cannot be written (the previous file stays); Error if a value is
///         of a kind that a data-only file cannot contain (an object, a function).
/// @note Blocks until the bytes are on disk.
LINKBOY_API void write_checkpoint(const std::filesystem::path& path, const StateDict& contents);

/// Options for reading a file.
struct ReadOptions {
  /// Whether to map the file. Tensors are then views of it, which are read when they are first
  /// used; changes to them stay in this process. The file must not be changed in place while the
  /// tensors exist; replacing it is allowed.
  bool mmap = false;
  /// Whether to verify the checksum of each record. After
  /// `torch.serialization.set_crc32_options(False)` Python writes no valid checksums.
  bool verify_checksums = true;
  /// Whether to read the tensors' data. If false, the tensors have shapes but no memory; the file
  /// is then read in pieces or, without `verify_checksums`, hardly at all. Ignored for
  /// `.safetensors` files, whose data is always read.
  bool with_data = true;
};

/// Reads a `.pt` file from `write_checkpoint`, or from Python's `torch.save` if it contains only
/// dicts, lists, tuples, numbers, strings and tensors (such as a `state_dict()` with its
/// `OrderedDict`); or reads the tensors of a `.safetensors` file. All tensors are on the CPU.
/// Reading never executes code from the file.
///
/// @throws FileError if the file cannot be opened or read; CorruptFileError if it is damaged
///         (according to its checksums), is not such a file, or names anything but data. The
///         message names the path.
LINKBOY_API StateDict read_checkpoint(const std::filesystem::path& path,
                                      const ReadOptions& options = {});

/// Checks that a file can be written at `path` now, and creates missing parent folders, so that a
/// long run does not fail at its end. An existing file is not changed.
///
/// @throws FileError if it cannot be written; the message contains the path and the system's
///         reason.
LINKBOY_API void check_writable(const std::filesystem::path& path);

/// Locks a file that a run writes in place, and creates it if necessary. The lock is held until the
/// last copy of the returned pointer is destroyed or the process ends, in whatever way. The lock is
/// advisory (`flock`) and does not pass to a file that replaces this one. On a filesystem without
/// locks, nothing is locked.
///
/// @throws FileError if another run of this or another process has locked it, if it is not a
///         regular file, or if it cannot be created or opened.
LINKBOY_API std::shared_ptr<void> lock_output_file(const std::filesystem::path& path);

}  // namespace linkboy
