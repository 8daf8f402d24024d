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
constexpr uint16_t kMax16 = std::numeric_limits<uint16_t>::max();
constexpr uint32_t kMax32 = std::numeric_limits<uint32_t>::max();

constexpr std::size_t kLocalSize = 30;
constexpr std::size_t kCentralSize = 46;
constexpr std::size_t kEndSize = 22;
constexpr std::size_t kEnd64Size = 56;
constexpr std::size_t kLocatorSize = 20;
constexpr std::size_t kRecordAlignment = 64;

/// A sequence of little-endian numbers and strings.
class Bytes {
 public:
  template <class Number>
  Bytes& put(Number value) {
    for (std::size_t i = 0; i < sizeof(value); ++i) {
      text_ += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff);
    }
    return *this;
  }
  Bytes& put_text(std::string_view text) {
    text_ += text;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class Parser {
 public:
  explicit Parser(std::string_view bytes) : bytes_(bytes) {}

  template <class Number>
  Number take() {
    const std::string_view bytes = take_text(sizeof(Number));
    uint64_t value = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
    }
    return static_cast<Number>(value);
  }

  std::string_view take_text(std::size_t size) {
    LINKBOY_CHECK(size <= bytes_.size(), "its directory of records is damaged. Use another copy.");
    const std::string_view text = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return text;
  }

  void skip(std::size_t size) { take_text(size); }
  bool empty() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

uint32_t crc_of(const void* data, std::size_t size) { return libdeflate_crc32(0, data, size); }

}  // namespace

// Writing.

void ZipWriter::write(std::string_view bytes) {
  file_.write(bytes.data(), bytes.size());
  position_ += bytes.size();
}

void ZipWriter::add(const std::string& name, const void* data, std::size_t size) {
  const Entry entry{folder_ + "/" + name, crc_of(data, size), size, position_};
  LINKBOY_CHECK(entry.name.size() < kMax16, "the record \"", entry.name,
                "\" has a name that is too long; use a shorter file name.");
  const bool is_large = size >= kMax32;
  Bytes extra;
  if (is_large) extra.put(kExtra64).put(uint16_t{16}).put(uint64_t{size}).put(uint64_t{size});
  const std::size_t unpadded = position_ + kLocalSize + entry.name.size() + extra.text().size() + 4;
  const std::size_t padding = (kRecordAlignment - unpadded % kRecordAlignment) % kRecordAlignment;
  extra.put(kExtraPadding).put(static_cast<uint16_t>(padding)).put_text(std::string(padding, 'Z'));

  const uint32_t short_size = is_large ? kMax32 : static_cast<uint32_t>(size);
  Bytes header;
  header.put(kLocalHeader).put(is_large ? kVersion64 : kVersion).put(uint16_t{0}).put(uint16_t{0});
  header.put(uint16_t{0}).put(kDate).put(entry.crc).put(short_size).put(short_size);
  header.put(static_cast<uint16_t>(entry.name.size()));
  header.put(static_cast<uint16_t>(extra.text().size()));
  header.put_text(entry.name).put_text(extra.text());
  write(header.text());
  file_.write(data, size);
  position_ += size;
  entries_.push_back(entry);
}

void ZipWriter::finish() {
  const uint64_t directory = position_;
  for (const Entry& entry : entries_) {
    const bool is_large = entry.size >= kMax32;
    const bool is_far = entry.offset >= kMax32;
    Bytes extra;
    if (is_large) extra.put(entry.size).put(entry.size);
    if (is_far) extra.put(entry.offset);
    const uint32_t short_size = is_large ? kMax32 : static_cast<uint32_t>(entry.size);
    const uint16_t version = is_large || is_far ? kVersion64 : kVersion;
    const std::size_t extra_size = extra.text().empty() ? 0 : extra.text().size() + 4;
    Bytes header;
    header.put(kCentralHeader).put(version).put(version).put(uint16_t{0}).put(uint16_t{0});
    header.put(uint16_t{0}).put(kDate).put(entry.crc).put(short_size).put(short_size);
    header.put(static_cast<uint16_t>(entry.name.size())).put(static_cast<uint16_t>(extra_size));
    header.put(uint16_t{0}).put(uint16_t{0}).put(uint16_t{0}).put(uint32_t{0});
    header.put(is_far ? kMax32 : static_cast<uint32_t>(entry.offset)).put_text(entry.name);
    if (extra_size > 0) {
      header.put(kExtra64).put(static_cast<uint16_t>(extra.text().size()));
      header.put_text(extra.text());
    }
    write(header.text());
  }
  const uint64_t directory_size = position_ - directory;
  const uint64_t end64 = position_;
  const uint64_t count = entries_.size();
  if (count >= kMax16 || directory >= kMax32 || directory_size >= kMax32) {
    Bytes record;
    record.put(kEnd64).put(uint64_t{kEnd64Size - 12}).put(kVersion64).put(kVersion64);
    record.put(uint32_t{0}).put(uint32_t{0}).put(count).put(count);
    record.put(directory_size).put(directory);
    record.put(kEnd64Locator).put(uint32_t{0}).put(end64).put(uint32_t{1});
    write(record.text());
  }
  const auto short_count = static_cast<uint16_t>(std::min<uint64_t>(count, kMax16));
  Bytes end;
  end.put(kEnd).put(uint16_t{0}).put(uint16_t{0}).put(short_count).put(short_count);
  end.put(static_cast<uint32_t>(std::min<uint64_t>(directory_size, kMax32)));
  end.put(static_cast<uint32_t>(std::min<uint64_t>(directory, kMax32))).put(uint16_t{0});
  write(end.text());
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
  Parser parser(std::string_view(tail).substr(end + 10));
  uint64_t count = parser.take<uint16_t>();
  uint64_t size = parser.take<uint32_t>();
  uint64_t offset = parser.take<uint32_t>();
  if (count == kMax16 || size == kMax32 || offset == kMax32) {
    LINKBOY_CHECK(end >= kLocatorSize, "its zip64 end record is missing. Use another copy.");
    Parser locator(std::string_view(tail).substr(end - kLocatorSize, kLocatorSize));
    LINKBOY_CHECK(locator.take<uint32_t>() == kEnd64Locator,
                  "its zip64 end record is missing. Use another copy.");
    locator.skip(4);
    const std::string record = file_->text(locator.take<uint64_t>(), kEnd64Size);
    Parser end64(record);
    LINKBOY_CHECK(end64.take<uint32_t>() == kEnd64,
                  "its zip64 end record is damaged. Use another copy.");
    end64.skip(28);
    count = end64.take<uint64_t>();
    size = end64.take<uint64_t>();
    offset = end64.take<uint64_t>();
  }
  LINKBOY_CHECK(count <= size / kCentralSize, "its directory claims ", count, " records in ", size,
                " bytes. Use another copy.");
  const std::string directory = file_->text(offset, size);
  Parser records(directory);
  for (uint64_t i = 0; i < count; ++i) {
    LINKBOY_CHECK(records.take<uint32_t>() == kCentralHeader,
                  "its directory of records is damaged. Use another copy.");
    records.skip(6);
    const auto method = records.take<uint16_t>();
    records.skip(4);
    Entry entry;
    entry.crc = records.take<uint32_t>();
    uint64_t packed = records.take<uint32_t>();
    entry.size = records.take<uint32_t>();
    const auto name_size = records.take<uint16_t>();
    const auto extra_size = records.take<uint16_t>();
    const auto comment_size = records.take<uint16_t>();
    records.skip(8);
    entry.header_offset = records.take<uint32_t>();
    std::string name(records.take_text(name_size));
    Parser extras(records.take_text(extra_size));
    records.skip(comment_size);
    while (!extras.empty()) {
      const auto id = extras.take<uint16_t>();
      Parser extra(extras.take_text(extras.take<uint16_t>()));
      if (id != kExtra64) continue;
      if (entry.size == kMax32) entry.size = extra.take<uint64_t>();
      if (packed == kMax32) packed = extra.take<uint64_t>();
      if (entry.header_offset == kMax32) entry.header_offset = extra.take<uint64_t>();
    }
    entry.is_stored = method == 0 && packed == entry.size;
    if (i == 0) folder_ = name.substr(0, name.find('/') + 1);
    const bool is_new = entries_.emplace(std::move(name), entry).second;
    LINKBOY_CHECK(is_new, "it has two records with the same name. Use another copy.");
  }
}

ZipReader::Place ZipReader::find(const std::string& name) {
  const std::string shown = quote_name(name);
  const auto found = entries_.find(folder_ + name);
  LINKBOY_CHECK(found != entries_.end(), "the record ", shown, " is missing. Use another copy.");
  const Entry entry = found->second;
  LINKBOY_CHECK(
      entry.is_stored, "the record ", shown,
      " is compressed; records must be stored uncompressed, as torch.save does. Repack the "
      "archive without compression.");
  // Records do not overlap, so together they are smaller than the file. A larger claim means damage
  // or an attempt to exhaust the memory.
  LINKBOY_CHECK(entry.size <= budget_, "the record ", shown, " claims ", entry.size,
                " bytes, more than the file has. Use another copy.");
  budget_ -= entry.size;
  const std::string header = file_->text(entry.header_offset, kLocalSize);
  Parser parser(header);
  LINKBOY_CHECK(parser.take<uint32_t>() == kLocalHeader, "the record ", shown,
                " is not where the directory says. Use another copy.");
  parser.skip(22);
  const uint64_t name_size = parser.take<uint16_t>();
  const uint64_t offset = entry.header_offset + kLocalSize + name_size + parser.take<uint16_t>();
  return {offset, entry.size, entry.crc};
}

void ZipReader::check_crc(const std::string& name, const Place& place, uint32_t crc) {
  LINKBOY_CHECK(crc == place.crc, "the record ", quote_name(name), " at offset ", place.offset,
                " has the checksum ", crc, ", but it should have ", place.crc,
                ": the file is damaged. Use another copy.");
}

std::size_t ZipReader::check(const std::string& name) {
  const Place place = find(name);
  if (!verify_) return place.size;
  uint32_t crc = 0;
  file_->visit(place.offset, place.size, [&crc](const void* data, std::size_t size) {
    crc = libdeflate_crc32(crc, data, size);
  });
  check_crc(name, place, crc);
  return place.size;
}

std::pair<at::DataPtr, std::size_t> ZipReader::read(const std::string& name) {
  const Place place = find(name);
  uint32_t crc = 0;
  FileBytes::Visit visit;
  if (verify_) {
    visit = [&crc](const void* data, std::size_t size) { crc = libdeflate_crc32(crc, data, size); };
  }
  at::DataPtr data = file_->data(place.offset, place.size, alignof(std::max_align_t), visit);
  if (verify_) check_crc(name, place, crc);
  return {std::move(data), static_cast<std::size_t>(place.size)};
}

std::string ZipReader::read_text(const std::string& name) {
  const auto [data, size] = read(name);
  return std::string(static_cast<const char*>(data.get()), size);
}

}  // namespace linkboy
