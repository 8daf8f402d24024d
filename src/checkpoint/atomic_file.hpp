#pragma once

#include <cstdint>
#include <filesystem>

namespace linkboy {

/// A file that appears at its path whole or not at all: written under a name beside it, fsynced
/// and renamed by `commit`. Destroyed before that, it leaves nothing behind.
class AtomicFile {
 public:
  /// @throws Error if the file cannot be created; parent folders are made.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends `size` bytes. @throws Error with the system's reason (a full disk, say).
  void write(const void* data, std::size_t size);

  /// Makes the bytes durable and gives the file its name. @throws Error; the old file then stays.
  void commit();

 private:
  void start_writeback();

  std::filesystem::path path_;
  std::filesystem::path aside_;
  int descriptor_ = -1;
  int64_t position_ = 0;
  int64_t started_ = 0;  // up to here the disk is at work
};

}  // namespace linkboy
