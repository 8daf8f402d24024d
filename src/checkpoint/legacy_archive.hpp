#pragma once

#include <ATen/core/ivalue.h>

#include <memory>

#include "checkpoint/file_bytes.hpp"

namespace linkboy {

/// Whether a file begins like one that torch.save wrote before PyTorch 1.6.
bool is_legacy_archive(const FileBytes& file);

/// Reads such a file: five pickles (a magic number, a version, the writer's types, the value and
/// the keys of the storages), followed by the number of elements and the bytes of each storage. The
/// file does not have checksums.
///
/// Safe for files from untrusted sources, like `unpickle`. The storages together cannot be larger
/// than the file.
///
/// @param with_data  If false, tensors have shapes but no memory.
/// @throws Error if the file is damaged or contains anything other than data.
c10::IValue read_legacy_archive(const std::shared_ptr<FileBytes>& file, bool with_data);

}  // namespace linkboy
