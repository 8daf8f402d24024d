#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// The contents of a `.safetensors` file.
struct SafeTensors {
  /// In the order of the file.
  NamedTensors tensors;
  /// Names and texts; empty if the file has none.
  std::map<std::string, std::string> metadata;
};

/// Writes `tensors` and `metadata` to `path` as Python's `safetensors` does, byte for byte: the
/// largest elements come first, then the order is that of the names. Readers that want the order of
/// the layers must bring it.
///
/// Dtypes: float64, float32, float16, bfloat16, (u)int64, (u)int32, (u)int16, (u)int8, bool,
/// complex64 and the float8 kinds. The file is replaced atomically, as write_checkpoint does it.
/// Tensors are made contiguous and copied to the CPU one at a time; ones that share a storage are
/// written each in full. Missing parent folders are created.
///
/// @throws Error if a tensor is undefined, has no data (meta), is sparse, quantised or of another
///         dtype; if a name comes twice, is "__metadata__" or not UTF-8; or if the file cannot be
///         written. What was at `path` then stays.
/// @note Blocks until the bytes are on disk.
LINKBOY_API void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                                   const std::map<std::string, std::string>& metadata = {});

/// Reads a `.safetensors` file. All tensors arrive on the CPU, in the order in which their data
/// lies in the file. The file may come from a stranger: its header is checked in full before any
/// tensor is made, and no more memory is asked for than a small multiple of the file's size.
///
/// With `mmap` the tensors are views of the mapped file, read from the disk when they are first
/// used. Writing to one changes that tensor only, never the file. The mapping lives as long as any
/// of the tensors. While it does, the file may be replaced by a rename (write_safetensors does so)
/// but must not be changed in place; one that is cut short then ends the process with SIGBUS.
/// Tensors that lie unaligned in the file are copied. Without `mmap` each tensor has memory of its
/// own.
///
/// @throws Error if the file is missing, damaged, cut short or not such a file; the message names
///         the path and, where it concerns one, the tensor.
LINKBOY_API SafeTensors read_safetensors(const std::filesystem::path& path, bool mmap = true);

/// Whether the first bytes of the file look like safetensors: a header of a length that fits into
/// the file and begins as JSON does. False as well if the file cannot be read. Never throws Error.
LINKBOY_API bool is_safetensors(const std::filesystem::path& path);

}  // namespace linkboy
