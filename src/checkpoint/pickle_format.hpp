#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace linkboy {

class FileBytes;

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
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
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
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

/// The kinds of Python objects that a pickle may refer to by name.
enum class Global {
  // Containers.
  kOrderedDict,
  kDict,  // Counter, defaultdict
  kList,  // set, frozenset
  kSize,
  // Other values.
  kTensorV1,
  kTensorV2,
  kTensorV3,
  kTensorWithAttributes,
  kDeviceTensor,
  kParameter,
  kParameterType,
  kBytes,
  kComplex,
  kDevice,
  kLayout,
  // Not functions.
  kStorageType,
  kDtype,
  kType
};

struct GlobalEntry {
  Global what;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

/// Returns the entry of a dotted Python name, or null if a file must not use the name.
const GlobalEntry* find_global(std::string name);

/// Whether a file can contain tensors of a dtype.
bool is_dtype_of_files(c10::ScalarType dtype);

/// Whether Python has a type of storages of a dtype, such as torch.FloatStorage. Tensors of other
/// dtypes are views of torch.storage.UntypedStorage.
bool has_storage_type(c10::ScalarType dtype);

/// A kind of value that torch.save writes but linkboy does not read.
struct RefusedKind {
  std::string_view name;     // the beginning of the dotted Python name
  std::string_view what;     // "a sparse tensor"
  std::string_view instead;  // Python's expression for a value that can be read, made of x
};

/// Returns the kind to which a dotted Python name belongs, or null if it is not known.
const RefusedKind* find_refused_kind(std::string_view name);

/// Reads the bytes of pickles from front to back.
///
/// @throws Error from every `take` function if too few bytes remain.
class PickleBytes {
 public:
  explicit PickleBytes(std::string_view bytes) : bytes_(bytes) {}
  /// Reads a file from `offset` on, piece by piece. The file must outlive this object.
  PickleBytes(const FileBytes& file, uint64_t offset) : file_(&file), offset_(offset) {}

  /// Number of bytes before the next one, from the start of the file.
  uint64_t position() const { return offset_ + taken_; }
  /// The result is valid until the next call.
  std::string_view take(std::size_t size);
  Op take_op() { return static_cast<Op>(take(1).front()); }
  uint64_t take_unsigned(std::size_t size);
  /// @throws Error also if the number has more than 64 bits.
  int64_t take_signed(std::size_t size);
  double take_double();
  std::string take_line();

 private:
  uint64_t end() const;
  void load(uint64_t size);

  const FileBytes* file_ = nullptr;
  std::string piece_;
  std::string_view bytes_;  // of the file: `piece_`
  uint64_t offset_ = 0;     // the position of `bytes_`
  std::size_t taken_ = 0;   // of `bytes_`
};

}  // namespace linkboy
