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

/// Writes a zip archive in the layout of torch.save: uncompressed records in one folder, each with
/// its CRC-32 and with its bytes at a multiple of 64 in the file.
class ZipWriter {
 public:
  /// @param file  Must outlive the writer; `finish` does not commit it.
  ZipWriter(AtomicFile& file, std::string folder) : file_(file), folder_(std::move(folder)) {}

  /// @throws Error if the file cannot be written.
  void add(const std::string& name, const void* data, std::size_t size);
  void add(const std::string& name, std::string_view text) { add(name, text.data(), text.size()); }

  /// Writes the directory of records at the end of the archive.
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

/// Reads such an archive. Safe for files from untrusted sources: every offset and size is checked
/// before use, the records together cannot be larger than the file, and reading the directory of n
/// records needs O(n log n) steps.
class ZipReader {
 public:
  /// @param file  If it is mapped, aligned records are private views of it.
  /// @param verify  Whether to check each record's CRC-32 when it is read.
  /// @throws Error if the file is not such an archive. The message describes the damage but does
  ///         not contain the name of the file.
  ZipReader(std::shared_ptr<FileBytes> file, bool verify);

  bool has(const std::string& name) const { return entries_.contains(folder_ + name); }

  /// Returns the bytes of a record, on the CPU.
  /// @throws Error if the record does not exist, lies outside of the file or has another checksum,
  ///         or if the records that were read are together larger than the file.
  std::pair<at::DataPtr, std::size_t> read(const std::string& name);
  std::string read_text(const std::string& name);

  /// Checks a record without keeping its bytes. If this reader verifies checksums, reads the record
  /// piece by piece.
  /// @return The size of the record.
  /// @throws The same errors as `read`.
  std::size_t check(const std::string& name);

 private:
  struct Entry {
    uint32_t crc = 0;
    uint64_t size = 0;
    uint64_t offset = 0;  // of its header
    bool is_stored = true;
  };

  void read_directory();
  /// Returns a record, with the offset of its bytes.
  Entry find(const std::string& name);
  static void check_crc(const std::string& name, const Entry& entry, uint32_t crc);

  std::shared_ptr<FileBytes> file_;
  bool verify_;
  std::string folder_;
  std::map<std::string, Entry> entries_;  // Not hashed, because the file chooses the names.
  uint64_t budget_;
};

}  // namespace linkboy
