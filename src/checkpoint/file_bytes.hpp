#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "checkpoint/descriptor.hpp"
#include "linkboy/error.hpp"

namespace linkboy {

/// A file's bytes, read where they are needed or mapped as a whole.
class FileBytes : public std::enable_shared_from_this<FileBytes> {
 public:
  /// @throws FileError with the system's reason if the file cannot be opened or mapped; Error if
  ///         it is not a regular file.
  static std::shared_ptr<FileBytes> open(const std::filesystem::path& path, bool mmap);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  uint64_t size() const { return size_; }

  /// Copies bytes. @throws Error if they are not all within the file; FileError if they cannot
  ///                        be read.
  std::string text(uint64_t offset, uint64_t size) const;

  /// Called with the bytes piece by piece, in order, while they are in the cache.
  using Visit = std::function<void(const void* data, std::size_t size)>;

  /// Reads bytes piece by piece, into memory of a fixed size, even if the file is mapped.
  /// @throws Error as `text`.
  void visit(uint64_t offset, uint64_t size, const Visit& visit) const;

  /// The bytes in memory of their own; or, of a mapped file in which they lie at a multiple of
  /// `alignment`, as a view that keeps it mapped, whose changes stay in this process.
  /// @throws Error as `text`.
  at::DataPtr data(uint64_t offset, uint64_t size, std::size_t alignment,
                   const Visit& visit = nullptr) const;

 private:
  explicit FileBytes(Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

  void check_within(uint64_t offset, uint64_t size) const;
  void read(char* target, uint64_t offset, uint64_t size) const;

  Descriptor descriptor_;
  uint64_t size_ = 0;
  char* mapping_ = nullptr;  // null if the file is not mapped
};

/// Tells files apart without reading them whole: the size and the CRC-32 of the last MiB, which
/// contains the checksums of all records of a checkpoint with up to some thousand tensors.
/// @throws FileError as `FileBytes::open`.
std::string file_digest(const std::filesystem::path& path);

}  // namespace linkboy
