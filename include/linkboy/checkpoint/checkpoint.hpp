#pragma once

#include <filesystem>
#include <memory>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Writes `contents` to `path` in the layout of Python's `torch.save`, so that
/// `torch.load(path, weights_only=True)` reads it, also with `mmap=True`.
///
/// The file is written aside, fsynced and renamed: `path` holds either what it held before or all
/// of `contents`, whenever the process is killed. Tensors on a device are copied to the CPU first;
/// tensors that share a storage are written once. Missing parent folders are created.
///
/// @throws Error if the file cannot be written (the old file stays) or a value is of a kind that a
///         data-only file cannot hold (an object, a function).
/// @note Blocks until the bytes are on disk.
LINKBOY_API void write_checkpoint(const std::filesystem::path& path, const StateDict& contents);

/// How a file is read.
struct ReadOptions {
  /// Maps the file: tensors are views of it, read when they are used, whose changes stay in this
  /// process. The file must then not be changed in place while they live; replacing it is fine.
  bool mmap = false;
  /// Checks the checksum of each record. Python writes none that holds after
  /// `torch.serialization.set_crc32_options(False)`.
  bool verify_checksums = true;
  /// False leaves the tensors' data out: they have shapes and no memory. The file is then read in
  /// pieces, or, without `verify_checksums`, hardly at all. Not for `.safetensors` files.
  bool with_data = true;
};

/// Reads a `.pt` file: one that `write_checkpoint` wrote, or one that Python's `torch.save` wrote
/// from dicts, lists, tuples, numbers, strings and tensors (a `state_dict()` with its
/// `OrderedDict`, say); or the tensors of a `.safetensors` file. All tensors arrive on the CPU.
/// Data only: no code of the file runs.
///
/// @throws Error if the file is missing, damaged (its checksums tell), not such a file, or names
/// anything but data; the
///         message names the path.
LINKBOY_API StateDict read_checkpoint(const std::filesystem::path& path,
                                      const ReadOptions& options = {});

/// Proves that a file could be written at `path` now, creating missing parent folders, so that a
/// long run does not find out at its end. An existing file is left as it is.
///
/// @throws Error if it could not; the message names the path and the system's reason.
LINKBOY_API void check_writable(const std::filesystem::path& path);

/// Locks a file that a run writes in place, which is made if it is not there, until the last copy
/// of what is returned is gone or the process ends, in whatever way. The lock is advisory
/// (`flock`). It does not pass to a file that replaces this one. A filesystem without locks is not
/// locked.
///
/// @throws Error if another run, of this or another process, has locked it, it is not a regular
///         file, or it cannot be opened.
LINKBOY_API std::shared_ptr<void> lock_output_file(const std::filesystem::path& path);

}  // namespace linkboy
