#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace linkboy {

/// The instructions that describe data in protocols 2 to 5 of Python's pickle format.
enum class Op : uint8_t {
  kMark = '(',
  kEmptyTuple = ')',
  kStop = '.',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kProtocol = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

/// The kinds of Python objects that a pickle may refer to by name.
enum class Global { kOrderedDict, kTensorV2, kTensorV3, kParameter, kSize, kStorageType, kDtype };

struct GlobalEntry {
  Global what;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

/// Returns the entry of a dotted Python name, or null if a file must not use the name.
const GlobalEntry* find_global(const std::string& name);

/// Reads the bytes of a pickle from front to back.
///
/// @throws Error from every `take` function if too few bytes remain.
class PickleBytes {
 public:
  explicit PickleBytes(std::string_view bytes) : bytes_(bytes) {}

  std::size_t size() const { return bytes_.size(); }
  std::size_t position() const { return position_; }
  std::string_view take(std::size_t size);
  Op take_op() { return static_cast<Op>(take(1).front()); }
  uint64_t take_unsigned(std::size_t size);
  /// @throws Error also if the number has more than 64 bits.
  int64_t take_signed(std::size_t size);
  double take_double();
  std::string take_line();

 private:
  std::string_view bytes_;
  std::size_t position_ = 0;
};

}  // namespace linkboy
