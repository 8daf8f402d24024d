// Encodes the fields of a Protocol Buffers message.

#include "protobuf_writer.hpp"

#include <bit>

namespace linkboy {
namespace {

// Wire types of the encoding.
constexpr uint64_t kVarint = 0;
constexpr uint64_t kFixed64 = 1;
constexpr uint64_t kLengthDelimited = 2;
constexpr uint64_t kFixed32 = 5;

}  // namespace

void ProtobufWriter::add_varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
  bytes_.push_back(static_cast<char>(value));
}

void ProtobufWriter::add_key(int field, uint64_t wire_type) {
  add_varint(static_cast<uint64_t>(field) << 3 | wire_type);
}

ProtobufWriter& ProtobufWriter::add_int(int field, int64_t value) {
  add_key(field, kVarint);
  add_varint(static_cast<uint64_t>(value));
  return *this;
}

ProtobufWriter& ProtobufWriter::add_double(int field, double value) {
  add_key(field, kFixed64);
  append_little_endian(bytes_, std::bit_cast<uint64_t>(value));
  return *this;
}

ProtobufWriter& ProtobufWriter::add_float(int field, float value) {
  add_key(field, kFixed32);
  append_little_endian(bytes_, std::bit_cast<uint32_t>(value));
  return *this;
}

ProtobufWriter& ProtobufWriter::add_bytes(int field, std::string_view bytes) {
  add_key(field, kLengthDelimited);
  add_varint(bytes.size());
  bytes_ += bytes;
  return *this;
}

ProtobufWriter& ProtobufWriter::add_doubles(int field, std::span<const double> values) {
  add_key(field, kLengthDelimited);
  add_varint(values.size_bytes());
  for (const double value : values) append_little_endian(bytes_, std::bit_cast<uint64_t>(value));
  return *this;
}

}  // namespace linkboy
