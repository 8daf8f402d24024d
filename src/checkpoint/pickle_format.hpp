#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

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

/// Returns the entry of a dotted Python name.
///
/// @param previous  The string before the name in the file, for the error; or null.
/// @throws Error if a file must not use the name. It says how to save the value in another form.
const GlobalEntry& find_global(std::string name, const std::string* previous);

/// Whether a file can contain tensors of a dtype.
bool is_dtype_of_files(c10::ScalarType dtype);

/// Whether Python has a type of storages of a dtype, such as torch.FloatStorage. Tensors of other
/// dtypes are views of torch.storage.UntypedStorage.
bool has_storage_type(c10::ScalarType dtype);

}  // namespace linkboy
