// The bytes of a file, and the numbers in them.

#pragma once

#include <c10/core/Allocator.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/file_descriptor.hpp"
#include "linkboy/error.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// The bytes of a file, which is either read on demand or mapped completely.
class LINKBOY_API FileBytes : public std::enable_shared_from_this<FileBytes> {
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

/// Reads bytes from front to back.
///
/// @throws Error from every `take` function if too few bytes remain.
class ByteReader {
 public:
  /// @param what  Names the bytes in errors, such as "its pickle".
  ByteReader(std::string_view bytes, const char* what) : what_(what), bytes_(bytes) {}
  /// Reads a file from `offset` on, piece by piece. The file must outlive this object.
  ByteReader(const FileBytes& file, uint64_t offset, const char* what)
      : file_(&file), what_(what), offset_(offset) {}

  /// Number of bytes before the next one, from the start of the file.
  uint64_t position() const { return offset_ + taken_; }
  bool is_at_end() const { return position() == end(); }

  /// Returns a view of the bytes; of a file's bytes, until the next call.
  std::string_view take(std::size_t size);
  /// Returns the little-endian number in `size` bytes, at most 8.
  uint64_t take_unsigned(std::size_t size);
  /// Returns the text before the next newline.
  std::string take_line();

 private:
  uint64_t end() const { return file_ == nullptr ? offset_ + bytes_.size() : file_->size(); }
  void load(uint64_t size);

  const FileBytes* file_ = nullptr;
  const char* what_;
  std::string piece_;
  std::string_view bytes_;  // of the file: `piece_`
  uint64_t offset_ = 0;     // the position of `bytes_`
  std::size_t taken_ = 0;   // of `bytes_`
};

/// Returns the bytes of numbers, each in little-endian order.
template <class... Numbers>
std::string little_endian(Numbers... numbers) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&numbers), sizeof(numbers)), ...);
  return bytes;
}

/// Rethrows the current exception, which a reader of `path` has thrown, with the path.
/// @throws FileError or CorruptFileError.
[[noreturn]] void rethrow_with_path(const char* what, const std::filesystem::path& path);

/// Calls `read` and adds the path to its errors. `what` describes the file: "checkpoint".
template <class Read>
auto with_path(const char* what, const std::filesystem::path& path, const Read& read) {
  try {
    return read();
  } catch (const std::exception&) {
    rethrow_with_path(what, path);
  }
}

/// Identifies a file without reading it completely: returns its size and the CRC-32 of its last
/// MiB. In a checkpoint with up to a few thousand tensors, the last MiB contains the checksums of
/// all records.
/// @throws The same errors as `FileBytes::open` and `FileBytes::visit`.
std::string file_digest(const std::filesystem::path& path);

}  // namespace linkboy
