#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/file_bytes.hpp"

namespace linkboy {

/// Encodes one Protocol Buffers message, field by field. Supports only the types that event files
/// need. This is less code than a build with protoc and its library would add.
class ProtobufWriter {
 public:
  ProtobufWriter& add_int(int field, int64_t value) {
    add_key(field, kVarint);
    add_varint(static_cast<uint64_t>(value));
    return *this;
  }
  ProtobufWriter& add_double(int field, double value) {
    add_key(field, kFixed64);
    bytes_ += little_endian(value);
    return *this;
  }
  ProtobufWriter& add_float(int field, float value) {
    add_key(field, kFixed32);
    bytes_ += little_endian(value);
    return *this;
  }
  /// Adds a string, bytes, or an encoded message.
  ProtobufWriter& add_bytes(int field, std::string_view bytes) {
    add_key(field, kLengthDelimited);
    add_varint(bytes.size());
    bytes_ += bytes;
    return *this;
  }
  ProtobufWriter& add_message(int field, const ProtobufWriter& message) {
    return add_bytes(field, message.bytes());
  }
  /// Adds a packed `repeated double`.
  ProtobufWriter& add_doubles(int field, std::span<const double> values) {
    std::string packed;
    for (const double value : values) packed += little_endian(value);
    return add_bytes(field, packed);
  }

  const std::string& bytes() const { return bytes_; }

 private:
  enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

  void add_key(int field, WireType type) { add_varint(static_cast<uint64_t>(field) << 3 | type); }

  void add_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }

  std::string bytes_;
};

}  // namespace linkboy
