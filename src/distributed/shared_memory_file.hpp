#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace linkboy {

/// Memory that other processes on this host can also map. It does not have a name in a file system,
/// and nothing remains of it after the processes end, even if they are killed.
class SharedMemoryFile {
 public:
  /// Creates memory filled with zeros.
  /// @return Null if there is not enough memory, or if the system does not support this kind of
  ///         memory.
  static std::unique_ptr<SharedMemoryFile> create(std::size_t bytes);

  /// Maps the memory of another process.
  /// @return Null unless `path`, as returned by that process's `path()`, refers to a file that
  ///         `create` made with this number of bytes.
  static std::unique_ptr<SharedMemoryFile> open(const std::string& path, std::size_t bytes);

  ~SharedMemoryFile();
  SharedMemoryFile(const SharedMemoryFile&) = delete;
  SharedMemoryFile& operator=(const SharedMemoryFile&) = delete;

  /// The memory; aligned to a page.
  std::byte* data() const { return data_; }

  /// The path with which other processes in the same process namespace can open it.
  std::string path() const;

  /// Locks a byte of the file. The lock ends with this object or with the process.
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
