#pragma once

#include <filesystem>
#include <memory>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Writes `contents` to `path` in the format of Python's `torch.save`. Python reads the file with
/// `torch.load(path, weights_only=True)`, with or without `mmap=True`.
///
/// Writes a temporary file, syncs it to disk and renames it. If the process is killed at any time,
/// `path` contains either its previous contents or all of `contents`. Copies device tensors to the
/// CPU first. Writes a shared storage only once. Creates missing parent folders.
///
/// @throws FileError if the file cannot be written; the previous file is then unchanged. Error if
///         `contents` has a value that a data-only file cannot contain: an object, a function, or a
///         tensor that is sparse, quantized, without data or of an unsupported dtype.
/// @note Blocks until the bytes are on disk.
LINKBOY_API void write_checkpoint(const std::filesystem::path& path, const StateDict& contents);

/// Options for `read_checkpoint`.
struct ReadOptions {
  /// Whether to memory-map the file. Tensors are then views of the mapping and are read from disk
  /// on first use. Changes to them stay in this process. While the tensors exist, the file may be
  /// replaced but must not be changed in place.
  bool mmap = false;
  /// Whether to verify the checksum of each record, if the file has checksums. Set it to false for
  /// files that Python wrote after `torch.serialization.set_crc32_options(False)`: their checksums
  /// are not valid.
  bool verify_checksums = true;
  /// Whether to read the tensors' data. If false, the tensors have shapes but no memory. The file
  /// is then still read, piece by piece, to verify its checksums; without `verify_checksums`, the
  /// data is not read. Ignored for `.safetensors` files, whose tensors always have data.
  bool with_data = true;
};

/// Reads a `.pt` file from `write_checkpoint` or Python's `torch.save` (also from PyTorch before
/// 1.6), or the tensors of a `.safetensors` file. A `.pt` file may contain dicts, lists, tuples,
/// numbers, bools, strings, None, tensors, and Python's other types of data, which become one of
/// these: docs/checkpoints_and_python.md has the list. All tensors are on the CPU. Reading never
/// executes code from the file.
///
/// @throws FileError if the file cannot be opened or read, or if there is not enough memory;
///         CorruptFileError if it is damaged, has another format, contains anything other than
///         data, or is not a dict whose keys are strings. The message contains the path.
LINKBOY_API StateDict read_checkpoint(const std::filesystem::path& path,
                                      const ReadOptions& options = {});

/// Reads a file like `read_checkpoint`, but also if it contains a single tensor, a list or a dict
/// with other keys.
///
/// @throws The same errors as `read_checkpoint`, except that the value can be of any type.
LINKBOY_API c10::IValue read_checkpoint_value(const std::filesystem::path& path,
                                              const ReadOptions& options = {});

/// Checks that a file can be written at `path`, so that a long run does not fail at its end.
/// Creates missing parent folders. Does not change an existing file.
///
/// @throws FileError if it cannot be written; the message contains the path and the system's
///         reason.
LINKBOY_API void check_writable(const std::filesystem::path& path);

/// Locks a file that a run writes in place. Creates the file if it does not exist. The lock is held
/// until the last copy of the returned pointer is destroyed or the process ends, even if it is
/// killed. The lock is advisory (`flock`) and does not apply to a file that replaces this one. On a
/// filesystem without locks, nothing is locked.
///
/// @throws FileError if another run, in this process or another, has locked the file, if it is not
///         a regular file, or if it cannot be created or opened.
[[nodiscard]] LINKBOY_API std::shared_ptr<void> lock_output_file(const std::filesystem::path& path);

}  // namespace linkboy
