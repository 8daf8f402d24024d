#include "pickle_format.hpp"

#include <bit>
#include <unordered_map>

#include "linkboy/error.hpp"

namespace linkboy {

// The complete list of names that a file may use. All of them only describe data.
const GlobalEntry* find_global(const std::string& name) {
  using enum Global;
  static const std::unordered_map<std::string, GlobalEntry> table = {
      {"collections.OrderedDict", {kOrderedDict}},
      {"torch._utils._rebuild_tensor_v2", {kTensorV2}},
      {"torch._utils._rebuild_tensor_v3", {kTensorV3}},
      {"torch._utils._rebuild_parameter", {kParameter}},
      {"torch.Size", {kSize}},
      {"torch.FloatStorage", {kStorageType, c10::kFloat}},
      {"torch.DoubleStorage", {kStorageType, c10::kDouble}},
      {"torch.HalfStorage", {kStorageType, c10::kHalf}},
      {"torch.BFloat16Storage", {kStorageType, c10::kBFloat16}},
      {"torch.LongStorage", {kStorageType, c10::kLong}},
      {"torch.IntStorage", {kStorageType, c10::kInt}},
      {"torch.ShortStorage", {kStorageType, c10::kShort}},
      {"torch.CharStorage", {kStorageType, c10::kChar}},
      {"torch.ByteStorage", {kStorageType, c10::kByte}},
      {"torch.BoolStorage", {kStorageType, c10::kBool}},
      {"torch.ComplexFloatStorage", {kStorageType, c10::kComplexFloat}},
      {"torch.ComplexDoubleStorage", {kStorageType, c10::kComplexDouble}},
      {"torch.storage.UntypedStorage", {kStorageType, c10::kByte}},
      {"torch.uint16", {kDtype, c10::kUInt16}},
      {"torch.uint32", {kDtype, c10::kUInt32}},
      {"torch.uint64", {kDtype, c10::kUInt64}},
      {"torch.float8_e4m3fn", {kDtype, c10::kFloat8_e4m3fn}},
      {"torch.float8_e5m2", {kDtype, c10::kFloat8_e5m2}},
  };
  const auto found = table.find(name);
  return found == table.end() ? nullptr : &found->second;
}

std::string_view PickleBytes::take(std::size_t size) {
  LINKBOY_CHECK(size <= bytes_.size() - position_, "its pickle ends too early, at byte ",
                bytes_.size(), ". Use another copy.");
  position_ += size;
  return bytes_.substr(position_ - size, size);
}

uint64_t PickleBytes::take_unsigned(std::size_t size) {
  uint64_t result = 0;
  const std::string_view bytes = take(size);
  for (std::size_t i = size; i-- > 0;) result = result << 8 | static_cast<uint8_t>(bytes[i]);
  return result;
}

int64_t PickleBytes::take_signed(std::size_t size) {
  LINKBOY_CHECK(size <= 8, "it contains an integer of ", size,
                " bytes; integers must fit into 64 bits. Save it as a float or a string.");
  if (size == 0) return 0;
  const auto shift = 64 - 8 * size;
  return static_cast<int64_t>(take_unsigned(size) << shift) >> shift;
}

double PickleBytes::take_double() {  // The only big-endian number in the format.
  uint64_t bits = 0;
  for (char byte : take(8)) bits = bits << 8 | static_cast<uint8_t>(byte);
  return std::bit_cast<double>(bits);
}

std::string PickleBytes::take_line() {
  const std::size_t end = bytes_.find('\n', position_);
  LINKBOY_CHECK(end != std::string_view::npos, "its pickle ends within a name. Use another copy.");
  std::string line(bytes_.substr(position_, end - position_));
  position_ = end + 1;
  return line;
}

}  // namespace linkboy
