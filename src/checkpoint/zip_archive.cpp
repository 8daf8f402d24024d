// The part of the zip format that torch.save uses: uncompressed records at aligned offsets.

#include "checkpoint/zip_archive.hpp"

#include <libdeflate.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "checkpoint/atomic_file.hpp"
#include "checkpoint/file_bytes.hpp"
#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"

namespace linkboy {
namespace {

// Names and numbers of the zip format (APPNOTE 6.3.10).
constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kCentralHeader = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50;
constexpr uint32_t kEnd64Locator = 0x07064b50;
constexpr uint16_t kExtra64 = 0x0001;
constexpr uint16_t kExtraPadding = 0x4246;  // "FB", which PyTorch uses for its padding
constexpr uint16_t kVersion = 20;
constexpr uint16_t kVersion64 = 45;
constexpr uint16_t kDate = 0x21;  // 1 January 1980, so that equal contents make equal files
constexpr uint16_t kUnused = 0;   // flags, times, comments and disks
constexpr uint16_t kMax16 = std::numeric_limits<uint16_t>::max();
constexpr uint32_t kMax32 = std::numeric_limits<uint32_t>::max();

constexpr const char* kWhat = "its directory of records";  // in errors

constexpr std::size_t kLocalSize = 30;
constexpr std::size_t kCentralSize = 46;
constexpr std::size_t kEndSize = 22;
constexpr std::size_t kEnd64Size = 56;
constexpr std::size_t kLocatorSize = 20;
constexpr std::size_t kRecordAlignment = 64;

/// Returns a number in the format's short form, in which the largest one means that the number is
/// in a zip64 record.
template <class Short>
Short shortened(uint64_t number) {
  return static_cast<Short>(std::min<uint64_t>(number, std::numeric_limits<Short>::max()));
}

}  // namespace

// Writing.

void ZipWriter::write(std::string_view bytes) {
  file_.write(bytes.data(), bytes.size());
  position_ += bytes.size();
}

void ZipWriter::add(const std::string& name, const void* data, std::size_t size) {
  const Entry entry{folder_ + "/" + name, libdeflate_crc32(0, data, size), size, position_};
  LINKBOY_CHECK(entry.name.size() < kMax16, "the record \"", entry.name,
                "\" has a name that is too long; use a shorter file name.");
  const bool is_large = size >= kMax32;
  std::string extra;
  if (is_large) extra = little_endian(kExtra64, uint16_t{16}, entry.size, entry.size);
  const std::size_t unpadded = position_ + kLocalSize + entry.name.size() + extra.size() + 4;
  const std::size_t padding = (kRecordAlignment - unpadded % kRecordAlignment) % kRecordAlignment;
  extra += little_endian(kExtraPadding, static_cast<uint16_t>(padding)) + std::string(padding, 'Z');

  const auto short_size = shortened<uint32_t>(size);
  write(little_endian(kLocalHeader, is_large ? kVersion64 : kVersion, kUnused, kUnused, kUnused,
                      kDate, entry.crc, short_size, short_size,
                      static_cast<uint16_t>(entry.name.size()),
                      static_cast<uint16_t>(extra.size())) +
        entry.name + extra);
  file_.write(data, size);
  position_ += size;
  entries_.push_back(entry);
}

void ZipWriter::finish() {
  const uint64_t directory = position_;
  for (const Entry& entry : entries_) {
    std::string extra;
    if (entry.size >= kMax32) extra = little_endian(entry.size, entry.size);
    if (entry.offset >= kMax32) extra += little_endian(entry.offset);
    const uint16_t version = extra.empty() ? kVersion : kVersion64;
    if (!extra.empty()) {
      extra.insert(0, little_endian(kExtra64, static_cast<uint16_t>(extra.size())));
    }
    const auto short_size = shortened<uint32_t>(entry.size);
    write(little_endian(kCentralHeader, version, version, kUnused, kUnused, kUnused, kDate,
                        entry.crc, short_size, short_size, static_cast<uint16_t>(entry.name.size()),
                        static_cast<uint16_t>(extra.size()), kUnused, kUnused, kUnused, uint32_t{0},
                        shortened<uint32_t>(entry.offset)) +
          entry.name + extra);
  }
  const uint64_t directory_size = position_ - directory;
  const uint64_t end64 = position_;
  const uint64_t count = entries_.size();
  if (count >= kMax16 || directory >= kMax32 || directory_size >= kMax32) {
    write(little_endian(kEnd64, uint64_t{kEnd64Size - 12}, kVersion64, kVersion64, uint32_t{0},
                        uint32_t{0}, count, count, directory_size, directory) +
          little_endian(kEnd64Locator, uint32_t{0}, end64, uint32_t{1}));
  }
  write(little_endian(kEnd, kUnused, kUnused, shortened<uint16_t>(count),
                      shortened<uint16_t>(count), shortened<uint32_t>(directory_size),
                      shortened<uint32_t>(directory), kUnused));
}

// Reading.

ZipReader::ZipReader(std::shared_ptr<FileBytes> file, bool verify)
    : file_(std::move(file)), verify_(verify), budget_(file_->size()) {
  read_directory();
}

void ZipReader::read_directory() {
  // The end record may be followed by a comment of up to 64 KiB.
  const uint64_t tail_size = std::min<uint64_t>(file_->size(), kEndSize + kMax16);
  const uint64_t tail_offset = file_->size() - tail_size;
  const std::string tail = file_->text(tail_offset, tail_size);
  const std::size_t end = tail.rfind("PK\x05\x06");
  LINKBOY_CHECK(end != std::string::npos && tail.size() - end >= kEndSize,
                "it is damaged or cut short: it has no end record. Use another copy.");
  ByteReader parser(std::string_view(tail).substr(end + 10), kWhat);
  uint64_t count = parser.take_unsigned(2);
  uint64_t size = parser.take_unsigned(4);
  uint64_t offset = parser.take_unsigned(4);
  if (count == kMax16 || size == kMax32 || offset == kMax32) {
    LINKBOY_CHECK(end >= kLocatorSize, "its zip64 end record is missing. Use another copy.");
    ByteReader locator(std::string_view(tail).substr(end - kLocatorSize, kLocatorSize), kWhat);
    LINKBOY_CHECK(locator.take_unsigned(4) == kEnd64Locator,
                  "its zip64 end record is missing. Use another copy.");
    locator.take(4);
    const std::string record = file_->text(locator.take_unsigned(8), kEnd64Size);
    ByteReader end64(record, kWhat);
    LINKBOY_CHECK(end64.take_unsigned(4) == kEnd64,
                  "its zip64 end record is damaged. Use another copy.");
    end64.take(28);
    count = end64.take_unsigned(8);
    size = end64.take_unsigned(8);
    offset = end64.take_unsigned(8);
  }
  LINKBOY_CHECK(count <= size / kCentralSize, "its directory claims ", count, " records in ", size,
                " bytes. Use another copy.");
  const std::string directory = file_->text(offset, size);
  ByteReader records(directory, kWhat);
  for (uint64_t i = 0; i < count; ++i) {
    LINKBOY_CHECK(records.take_unsigned(4) == kCentralHeader,
                  "its directory of records is damaged. Use another copy.");
    records.take(6);
    const auto method = records.take_unsigned(2);
    records.take(4);
    Entry entry;
    entry.crc = static_cast<uint32_t>(records.take_unsigned(4));
    uint64_t packed = records.take_unsigned(4);
    entry.size = records.take_unsigned(4);
    const auto name_size = records.take_unsigned(2);
    const auto extra_size = records.take_unsigned(2);
    const auto comment_size = records.take_unsigned(2);
    records.take(8);
    entry.offset = records.take_unsigned(4);
    std::string name(records.take(name_size));
    ByteReader extras(records.take(extra_size), kWhat);
    records.take(comment_size);
    while (!extras.is_at_end()) {
      const auto id = extras.take_unsigned(2);
      ByteReader extra(extras.take(extras.take_unsigned(2)), kWhat);
      if (id != kExtra64) continue;
      if (entry.size == kMax32) entry.size = extra.take_unsigned(8);
      if (packed == kMax32) packed = extra.take_unsigned(8);
      if (entry.offset == kMax32) entry.offset = extra.take_unsigned(8);
    }
    entry.is_stored = method == 0 && packed == entry.size;
    if (i == 0) folder_ = name.substr(0, name.find('/') + 1);
    const bool is_new = entries_.emplace(std::move(name), entry).second;
    LINKBOY_CHECK(is_new, "it has two records with the same name. Use another copy.");
  }
}

ZipReader::Entry ZipReader::find(const std::string& name) {
  const std::string shown = quote_name(name);
  const auto found = entries_.find(folder_ + name);
  LINKBOY_CHECK(found != entries_.end(), "the record ", shown, " is missing. Use another copy.");
  Entry entry = found->second;
  LINKBOY_CHECK(
      entry.is_stored, "the record ", shown,
      " is compressed; records must be stored uncompressed, as torch.save does. Repack the "
      "archive without compression.");
  // Records do not overlap, so together they are smaller than the file. A larger claim means damage
  // or an attempt to exhaust the memory.
  LINKBOY_CHECK(entry.size <= budget_, "the record ", shown, " claims ", entry.size,
                " bytes, more than the file has. Use another copy.");
  budget_ -= entry.size;
  const std::string header = file_->text(entry.offset, kLocalSize);
  ByteReader parser(header, kWhat);
  LINKBOY_CHECK(parser.take_unsigned(4) == kLocalHeader, "the record ", shown,
                " is not where the directory says. Use another copy.");
  parser.take(22);
  const uint64_t name_size = parser.take_unsigned(2);
  entry.offset += kLocalSize + name_size + parser.take_unsigned(2);
  return entry;
}

void ZipReader::check_crc(const std::string& name, const Entry& entry, uint32_t crc) {
  LINKBOY_CHECK(crc == entry.crc, "the record ", quote_name(name), " at offset ", entry.offset,
                " has the checksum ", crc, ", but it should have ", entry.crc,
                ": the file is damaged. Use another copy.");
}

std::size_t ZipReader::check(const std::string& name) {
  const Entry entry = find(name);
  if (!verify_) return entry.size;
  uint32_t crc = 0;
  file_->visit(entry.offset, entry.size, [&crc](const void* data, std::size_t size) {
    crc = libdeflate_crc32(crc, data, size);
  });
  check_crc(name, entry, crc);
  return entry.size;
}

std::pair<at::DataPtr, std::size_t> ZipReader::read(const std::string& name) {
  const Entry entry = find(name);
  uint32_t crc = 0;
  FileBytes::Visit visit;
  if (verify_) {
    visit = [&crc](const void* data, std::size_t size) { crc = libdeflate_crc32(crc, data, size); };
  }
  at::DataPtr data = file_->data(entry.offset, entry.size, alignof(std::max_align_t), visit);
  if (verify_) check_crc(name, entry, crc);
  return {std::move(data), static_cast<std::size_t>(entry.size)};
}

std::string ZipReader::read_text(const std::string& name) {
  const auto [data, size] = read(name);
  return std::string(static_cast<const char*>(data.get()), size);
}

}  // namespace linkboy
