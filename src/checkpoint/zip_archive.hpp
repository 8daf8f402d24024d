#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace linkboy {

class AtomicFile;
class FileBytes;

/// Writes a zip archive as torch.save lays it out: records stored as they are, each with its CRC-32
/// and its bytes at a multiple of 64 in the file, under one folder.
class ZipWriter {
 public:
  /// @param file  Must outlive the writer; `finish` does not commit it.
  ZipWriter(AtomicFile& file, std::string folder) : file_(file), folder_(std::move(folder)) {}

  /// @throws Error if the file cannot be written.
  void add(const std::string& name, const void* data, std::size_t size);
  void add(const std::string& name, std::string_view text) { add(name, text.data(), text.size()); }

  /// Writes the directory at the end.
  void finish();

 private:
  struct Entry {
    std::string name;
    uint32_t crc;
    uint64_t size;
    uint64_t offset;
  };

  void write(std::string_view bytes);

  AtomicFile& file_;
  std::string folder_;
  std::vector<Entry> entries_;
  uint64_t position_ = 0;
};

/// Reads such an archive. Fit for files from anyone: every offset and size is checked before use,
/// the records together cannot be larger than the file, and the directory of n records takes
/// O(n log n) steps.
class ZipReader {
 public:
  /// @param file  If it is mapped, records are private views of it.
  /// @param verify  Checks each record's CRC-32 when it is read.
  /// @throws Error if it is no such archive; the message says where it is damaged, not its name.
  ZipReader(std::shared_ptr<FileBytes> file, bool verify);

  bool has(const std::string& name) const { return entries_.contains(folder_ + name); }

  /// The bytes of a record, on the CPU.
  /// @throws Error if it is not there, lies outside of the file or has another checksum, or if the
  ///         records that were read have more bytes together than the file.
  std::pair<at::DataPtr, std::size_t> read(const std::string& name);
  std::string read_text(const std::string& name);

  /// Reads a record piece by piece, if this reader verifies, and keeps nothing of it.
  /// @return Its size. @throws Error as `read`.
  std::size_t check(const std::string& name);

 private:
  struct Entry {
    uint32_t crc = 0;
    uint64_t size = 0;
    uint64_t header_offset = 0;
    bool is_stored = true;
  };

  /// Where a record's bytes are.
  struct Place {
    uint64_t offset;
    uint64_t size;
    uint32_t crc;
  };

  void read_directory();
  Place find(const std::string& name);
  static void check_crc(const std::string& name, const Place& place, uint32_t crc);

  std::shared_ptr<FileBytes> file_;
  bool verify_;
  std::string folder_;
  std::map<std::string, Entry> entries_;  // Not hashed: the file chooses the names.
  uint64_t budget_;
};

}  // namespace linkboy
