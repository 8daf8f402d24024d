#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// The contents of a `.safetensors` file.
struct SafeTensors {
  /// The tensors, in the order of the file.
  NamedTensors tensors;
  /// Texts by name; empty if the file does not contain metadata.
  std::map<std::string, std::string> metadata;
};

/// Writes `tensors` and `metadata` to `path`, byte for byte as Python's `safetensors` does. The
/// tensors are sorted by dtype (largest elements first), then by name, so the file does not
/// preserve the order of the layers.
///
/// Supported dtypes are float64, float32, float16, bfloat16, (u)int64, (u)int32, (u)int16, (u)int8,
/// bool, complex64 and the float8 types. The file is replaced atomically, as in write_checkpoint.
/// Tensors are made contiguous and copied to the CPU one at a time; tensors that share a storage
/// are each written in full. Missing parent folders are created.
///
/// @throws Error if a tensor is undefined, does not have data (meta), is sparse or has another
///         dtype; if a name occurs twice, is "__metadata__" or is not UTF-8; or if the header is
///         too long. FileError if the file cannot be written. The previous file at `path` is then
///         unchanged.
/// @note Blocks until the bytes are on disk.
LINKBOY_API void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                                   const std::map<std::string, std::string>& metadata = {});

/// Reads a `.safetensors` file. All tensors are on the CPU, in the order of their data in the file.
/// The file may come from an untrusted source: the complete header is checked before any tensor is
/// created, and the memory allocated is at most a small multiple of the file's size.
///
/// With `mmap`, the tensors are views of the mapped file and are read from disk on first use; only
/// bool tensors are read immediately, to check their bytes. Writing to a tensor changes only that
/// tensor, never the file. The mapping exists as long as any of the tensors. During that time, the
/// file may be replaced by a rename (as write_safetensors does) but must not be changed in place;
/// if it is truncated, access kills the process with SIGBUS. Tensors that are not aligned in the
/// file are copied. Without `mmap`, each tensor has separate memory.
///
/// @throws FileError if the file cannot be opened or read, or if there is not enough memory;
///         CorruptFileError if it is damaged, truncated or not a safetensors file. The message
///         contains the path and, if a single tensor is invalid, its name.
LINKBOY_API SafeTensors read_safetensors(const std::filesystem::path& path, bool mmap = true);

/// Whether the file begins like a safetensors file: with the length of a header that fits into the
/// file, followed by "{". Returns false if the file cannot be read. Does not throw Error.
LINKBOY_API bool is_safetensors(const std::filesystem::path& path);

}  // namespace linkboy
