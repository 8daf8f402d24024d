// The complete list of Python names that a pickle may use, and advice for others.

#include "pickle_format.hpp"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>
#include <unordered_map>

#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"

namespace linkboy {
namespace {

// The dtypes of the tensors in a file. For the first ones, Python has a type of storages, such as
// torch.FloatStorage.
constexpr c10::ScalarType kTensorDtypes[] = {
    c10::kFloat, c10::kDouble, c10::kHalf, c10::kBFloat16, c10::kLong, c10::kInt, c10::kShort,
    c10::kChar, c10::kByte, c10::kBool, c10::kComplexFloat, c10::kComplexDouble,
    // Without a type of storages:
    c10::kComplexHalf, c10::kUInt64, c10::kUInt32, c10::kUInt16, c10::kFloat8_e4m3fn,
    c10::kFloat8_e4m3fnuz, c10::kFloat8_e5m2, c10::kFloat8_e5m2fnuz, c10::kFloat8_e8m0fnu,
    c10::kFloat4_e2m1fn_x2};
constexpr auto kDtypesWithStorage = std::span(kTensorDtypes).first<12>();

using GlobalTable = std::unordered_map<std::string, GlobalEntry>;

GlobalTable make_table() {
  using enum Global;
  GlobalTable table = {
      {"collections.OrderedDict", {kOrderedDict}},
      {"collections.Counter", {kDict}},
      {"collections.defaultdict", {kDict}},
      {"builtins.set", {kList}},
      {"builtins.frozenset", {kList}},
      {"torch.Size", {kSize}},
      {"torch._utils._rebuild_tensor", {kTensorV1}},
      {"torch._utils._rebuild_tensor_v2", {kTensorV2}},
      {"torch._utils._rebuild_tensor_v3", {kTensorV3}},
      {"torch._tensor._rebuild_from_type_v2", {kTensorWithAttributes}},
      {"torch._utils._rebuild_device_tensor_from_cpu_tensor", {kDeviceTensor}},
      {"torch._utils._rebuild_parameter", {kParameter}},
      {"torch._utils._rebuild_parameter_with_state", {kParameter}},
      {"torch.nn.parameter.Parameter", {kParameterType}},
      {"_codecs.encode", {kBytes}},
      {"builtins.bytes", {kBytes}},
      {"builtins.bytearray", {kBytes}},
      {"builtins.complex", {kComplex}},
      {"torch.device", {kDevice}},
      {"torch.serialization._get_layout", {kLayout}},
      // Factories of a defaultdict, and classes of tensors with attributes.
      {"builtins.bool", {kType}},
      {"builtins.dict", {kType}},
      {"builtins.float", {kType}},
      {"builtins.int", {kType}},
      {"builtins.list", {kType}},
      {"builtins.str", {kType}},
      {"builtins.tuple", {kType}},
      {"torch.Tensor", {kType}},
      {"torch.storage.UntypedStorage", {kStorageType, c10::kByte}},
      // Values, but not dtypes of the tensors in a file.
      {"torch.quint8", {kDtype}},
      {"torch.qint8", {kDtype}},
      {"torch.qint32", {kDtype}},
      {"torch.quint4x2", {kDtype}},
      {"torch.quint2x4", {kDtype}},
  };
  for (const auto dtype : kTensorDtypes) {
    table["torch." + c10::getDtypeNames(dtype).first] = {kDtype, dtype};
  }
  for (const auto dtype : kDtypesWithStorage) {
    table[c10::str("torch.", c10::toString(dtype), "Storage")] = {kStorageType, dtype};
  }
  return table;
}

/// A kind of value that torch.save writes but linkboy does not read.
struct RefusedKind {
  std::string_view name;     // the beginning of the dotted Python name
  std::string_view what;     // "a sparse tensor"
  std::string_view instead;  // Python's expression for a value that can be read, made of x
};

constexpr RefusedKind kRefusedKinds[] = {
    {"torch._utils._rebuild_sparse_tensor", "a sparse tensor", "x.to_dense()"},
    {"torch._utils._rebuild_qtensor", "a quantized tensor", "x.dequantize()"},
    {"torch._utils._rebuild_nested_tensor", "a nested tensor", "x.unbind()"},
    {"torch.nested.", "a nested tensor", "x.unbind()"},
    {"torch._utils._rebuild_meta_tensor_no_storage", "a tensor without data",
     "torch.zeros_like(x, device=\"cpu\")"},
    {"torch.distributed.tensor.", "a DTensor", "x.full_tensor()"},
    {"torch.distributed._tensor.", "a DTensor", "x.full_tensor()"},
    {"numpy.", "a NumPy object", "x.tolist()"},
    {"argparse.Namespace", "an argparse.Namespace", "vars(x)"},
    {"pathlib.", "a path", "str(x)"},
};

}  // namespace

const GlobalEntry& find_global(std::string name, const std::string* previous) {
  static const GlobalTable table = make_table();
  constexpr std::string_view kBuiltinsOfPython2 = "__builtin__.";
  if (name.starts_with(kBuiltinsOfPython2)) {
    name.replace(0, kBuiltinsOfPython2.size(), "builtins.");
  }
  if (const auto found = table.find(name); found != table.end()) return found->second;
  for (const RefusedKind& kind : kRefusedKinds) {
    LINKBOY_CHECK(!name.starts_with(kind.name), "it contains ", kind.what,
                  previous ? " (after the string " + quote_name(*previous) + ")" : "",
                  ", which cannot be read. In Python, save ", kind.instead,
                  " in place of the value x.");
  }
  throw Error(c10::str("it refers to the Python object ", quote_name(name),
                       "; only data can be read: tensors, numbers, strings, None, and lists, "
                       "tuples and dicts of these. Save x.state_dict() rather than the object x."));
}

bool is_dtype_of_files(c10::ScalarType dtype) {
  return std::ranges::find(kTensorDtypes, dtype) != std::end(kTensorDtypes);
}

bool has_storage_type(c10::ScalarType dtype) {
  return std::ranges::find(kDtypesWithStorage, dtype) != kDtypesWithStorage.end();
}

}  // namespace linkboy
