#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace linkboy {

/// Memory without a name in any file system, which other processes of this host can map as well:
/// nothing is left of it, however they end.
class SharedMemoryFile {
 public:
  /// Zeros. @return Null if there is not so much memory, or no such kind of it.
  static std::unique_ptr<SharedMemoryFile> create(std::size_t bytes);

  /// Maps that of another process. @return Null unless `path`, as that process sees it, is one that
  /// `create` has made with this number of bytes.
  static std::unique_ptr<SharedMemoryFile> open(const std::string& path, std::size_t bytes);

  ~SharedMemoryFile();
  SharedMemoryFile(const SharedMemoryFile&) = delete;
  SharedMemoryFile& operator=(const SharedMemoryFile&) = delete;

  /// At the start of a page.
  std::byte* data() const { return data_; }

  /// Where others of the same namespace of processes can open it.
  std::string path() const;

  /// A lock on a byte of the file, which ends with this object or, by the kernel's hand, with the
  /// process.
  bool lock(int64_t byte);
  bool is_locked_by_other(int64_t byte) const;

 private:
  SharedMemoryFile(int file, std::byte* data, std::size_t bytes);
  static std::unique_ptr<SharedMemoryFile> map(int file, std::size_t bytes);

  int file_;
  std::byte* data_;
  std::size_t bytes_;
};

}  // namespace linkboy
