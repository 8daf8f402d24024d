#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "checkpoint/file_descriptor.hpp"
#include "linkboy/error.hpp"

namespace linkboy {

/// The bytes of a file, which is either read on demand or mapped completely.
class FileBytes : public std::enable_shared_from_this<FileBytes> {
 public:
  /// @throws FileError with the system's reason if the file cannot be opened or mapped, or if it is
  ///         not a regular file.
  static std::shared_ptr<FileBytes> open(const std::filesystem::path& path, bool mmap);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  uint64_t size() const { return size_; }

  /// Returns a copy of the bytes.
  /// @throws Error if they are not all within the file; FileError if they cannot be read.
  std::string text(uint64_t offset, uint64_t size) const;

  /// A function that is called with the bytes piece by piece, in order, while they are in the
  /// processor's cache.
  using Visit = std::function<void(const void* data, std::size_t size)>;

  /// Reads bytes piece by piece into a buffer of fixed size, even if the file is mapped.
  /// @throws The same errors as `text`.
  void visit(uint64_t offset, uint64_t size, const Visit& visit) const;

  /// Returns the bytes in separate memory. If the file is mapped and the bytes begin at a multiple
  /// of `alignment`, returns a view of them, which keeps the file mapped. Changes to the view stay
  /// in this process.
  /// @throws The same errors as `text`.
  at::DataPtr data(uint64_t offset, uint64_t size, std::size_t alignment,
                   const Visit& visit = nullptr) const;

 private:
  explicit FileBytes(FileDescriptor descriptor) : descriptor_(std::move(descriptor)) {}

  void check_within(uint64_t offset, uint64_t size) const;
  void read(char* target, uint64_t offset, uint64_t size) const;

  FileDescriptor descriptor_;
  uint64_t size_ = 0;
  char* mapping_ = nullptr;  // null if the file is not mapped
};

/// Identifies a file without reading it completely: returns its size and the CRC-32 of its last
/// MiB. In a checkpoint with up to a few thousand tensors, the last MiB contains the checksums of
/// all records.
/// @throws The same errors as `FileBytes::open` and `FileBytes::visit`.
std::string file_digest(const std::filesystem::path& path);

}  // namespace linkboy
