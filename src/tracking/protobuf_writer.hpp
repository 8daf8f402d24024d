#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace linkboy {

/// Encodes one Protocol Buffers message, field by field. Supports only the types that event files
/// need. This is less code than a build with protoc and its library would add.
class ProtobufWriter {
 public:
  ProtobufWriter& add_int(int field, int64_t value);
  ProtobufWriter& add_double(int field, double value);
  ProtobufWriter& add_float(int field, float value);
  /// Adds a string, bytes, or an encoded message.
  ProtobufWriter& add_bytes(int field, std::string_view bytes);
  ProtobufWriter& add_message(int field, const ProtobufWriter& message) {
    return add_bytes(field, message.bytes());
  }
  /// Adds a packed `repeated double`.
  ProtobufWriter& add_doubles(int field, std::span<const double> values);

  const std::string& bytes() const { return bytes_; }

 private:
  void add_key(int field, uint64_t wire_type);
  void add_varint(uint64_t value);

  std::string bytes_;
};

/// Appends the bytes of a number, the lowest byte first.
template <class Number>
void append_little_endian(std::string& bytes, Number value) {
  for (std::size_t i = 0; i < sizeof(value); ++i) {
    bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
  }
}

}  // namespace linkboy
