// The complete list of Python names that a pickle may use, and the numbers and lines in its bytes.

#include "pickle_format.hpp"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "checkpoint/file_bytes.hpp"
#include "linkboy/error.hpp"

namespace linkboy {

// The complete list of names that a file may use. All of them only describe data.
const GlobalEntry* find_global(std::string name) {
  using enum Global;
  static const std::unordered_map<std::string, GlobalEntry> table = {
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
      {"torch.float64", {kDtype, c10::kDouble}},
      {"torch.float32", {kDtype, c10::kFloat}},
      {"torch.float16", {kDtype, c10::kHalf}},
      {"torch.bfloat16", {kDtype, c10::kBFloat16}},
      {"torch.float8_e4m3fn", {kDtype, c10::kFloat8_e4m3fn}},
      {"torch.float8_e4m3fnuz", {kDtype, c10::kFloat8_e4m3fnuz}},
      {"torch.float8_e5m2", {kDtype, c10::kFloat8_e5m2}},
      {"torch.float8_e5m2fnuz", {kDtype, c10::kFloat8_e5m2fnuz}},
      {"torch.float8_e8m0fnu", {kDtype, c10::kFloat8_e8m0fnu}},
      {"torch.float4_e2m1fn_x2", {kDtype, c10::kFloat4_e2m1fn_x2}},
      {"torch.complex128", {kDtype, c10::kComplexDouble}},
      {"torch.complex64", {kDtype, c10::kComplexFloat}},
      {"torch.complex32", {kDtype, c10::kComplexHalf}},
      {"torch.int64", {kDtype, c10::kLong}},
      {"torch.int32", {kDtype, c10::kInt}},
      {"torch.int16", {kDtype, c10::kShort}},
      {"torch.int8", {kDtype, c10::kChar}},
      {"torch.uint64", {kDtype, c10::kUInt64}},
      {"torch.uint32", {kDtype, c10::kUInt32}},
      {"torch.uint16", {kDtype, c10::kUInt16}},
      {"torch.uint8", {kDtype, c10::kByte}},
      {"torch.bool", {kDtype, c10::kBool}},
      // Values, but not dtypes of the tensors in a file.
      {"torch.quint8", {kDtype}},
      {"torch.qint8", {kDtype}},
      {"torch.qint32", {kDtype}},
      {"torch.quint4x2", {kDtype}},
      {"torch.quint2x4", {kDtype}},
      // Factories of a defaultdict, and classes of tensors with attributes.
      {"builtins.bool", {kType}},
      {"builtins.dict", {kType}},
      {"builtins.float", {kType}},
      {"builtins.int", {kType}},
      {"builtins.list", {kType}},
      {"builtins.str", {kType}},
      {"builtins.tuple", {kType}},
      {"torch.Tensor", {kType}},
  };
  constexpr std::string_view kBuiltinsOfPython2 = "__builtin__.";
  if (name.starts_with(kBuiltinsOfPython2)) {
    name.replace(0, kBuiltinsOfPython2.size(), "builtins.");
  }
  const auto found = table.find(name);
  return found == table.end() ? nullptr : &found->second;
}

bool is_dtype_of_files(c10::ScalarType dtype) {
  const GlobalEntry* entry = find_global("torch." + c10::getDtypeNames(dtype).first);
  return entry != nullptr && entry->dtype == dtype;
}

bool has_storage_type(c10::ScalarType dtype) {
  return find_global(c10::str("torch.", c10::toString(dtype), "Storage")) != nullptr;
}

const RefusedKind* find_refused_kind(std::string_view name) {
  static constexpr RefusedKind kKinds[] = {
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
  for (const RefusedKind& kind : kKinds) {
    if (name.starts_with(kind.name)) return &kind;
  }
  return nullptr;
}

uint64_t PickleBytes::end() const {
  return file_ == nullptr ? offset_ + bytes_.size() : file_->size();
}

/// Drops the bytes that were taken, and reads until `bytes_` has at least `size` bytes, or until
/// the end of the file.
void PickleBytes::load(uint64_t size) {
  constexpr uint64_t kPiece = uint64_t{1} << 16;
  offset_ = position();
  piece_ = file_->text(offset_, std::min(std::max(size, kPiece), end() - offset_));
  bytes_ = piece_;
  taken_ = 0;
}

std::string_view PickleBytes::take(std::size_t size) {
  LINKBOY_CHECK(size <= end() - position(), "its pickle ends too early, at byte ", end(),
                ". Use another copy.");
  if (size > bytes_.size() - taken_) load(size);
  taken_ += size;
  return bytes_.substr(taken_ - size, size);
}

uint64_t PickleBytes::take_unsigned(std::size_t size) {
  uint64_t result = 0;
  const std::string_view bytes = take(size);
  for (std::size_t i = size; i-- > 0;) result = result << 8 | static_cast<uint8_t>(bytes[i]);
  return result;
}

int64_t PickleBytes::take_signed(std::size_t size) {
  LINKBOY_CHECK(
      size <= 8, "it contains an integer of ", size,
      " bytes; integers must fit into 64 bits. In Python, save float(x) or str(x) in place of the "
      "integer x.");
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
  std::size_t line_end = bytes_.find('\n', taken_);
  while (line_end == std::string_view::npos) {
    const std::size_t num_searched = bytes_.size() - taken_;
    LINKBOY_CHECK(num_searched < end() - position(),
                  "its pickle ends within a name. Use another copy.");
    load(2 * num_searched);
    line_end = bytes_.find('\n');
  }
  std::string line(bytes_.substr(taken_, line_end - taken_));
  taken_ = line_end + 1;
  return line;
}

}  // namespace linkboy
