// Computes the values that a pickle describes, within limits that it cannot exceed by repetition.

#include "pickle_node.hpp"

#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "ivalue_tree.hpp"
#include "linkboy/error.hpp"
#include "rebuild_tensor.hpp"

namespace linkboy {
namespace {

using Nodes = std::vector<PickleNode*>;

void check_description(bool is_valid, const char* what) {
  LINKBOY_CHECK(is_valid, "its description of a ", what, " is damaged. Use another copy.");
}

int64_t int_of(const PickleNode& node) {
  check_description(node.plain.isInt(), "tensor");
  return node.plain.toInt();
}

std::vector<int64_t> ints_of(const PickleNode& node) {
  check_description(node.is_sequence() && node.items.size() <= kMaxDimensions, "tensor");
  std::vector<int64_t> result;
  result.reserve(node.items.size());
  for (const PickleNode* item : node.items) result.push_back(int_of(*item));
  return result;
}

// (storage, offset, sizes, strides[, requires_grad, hooks[, dtype][, flags]])
at::Tensor make_tensor(Global function, const Nodes& arguments) {
  const bool has_dtype = function == Global::kTensorV3;
  const std::size_t num_fixed = has_dtype ? 7 : function == Global::kTensorV2 ? 6 : 4;
  check_description(arguments.size() >= num_fixed && arguments.size() <= num_fixed + 1 &&
                        arguments[0]->kind == PickleNode::Kind::kStorage &&
                        (!has_dtype || (arguments[6]->kind == PickleNode::Kind::kGlobal &&
                                        arguments[6]->global.what == Global::kDtype)),
                    "tensor");
  LINKBOY_CHECK(arguments.size() == num_fixed || arguments[num_fixed]->items.empty(),
                "it contains a conjugate or negated view, which cannot be read. In Python, save "
                "x.resolve_conj().resolve_neg() in place of the tensor x.");
  const PickleNode& storage = *arguments[0];
  const auto dtype = has_dtype ? arguments[6]->global.dtype : storage.global.dtype;
  check_description(dtype != c10::ScalarType::Undefined, "tensor");
  return rebuild_tensor(storage.storage, dtype, int_of(*arguments[1]), ints_of(*arguments[2]),
                        ints_of(*arguments[3]));
}

/// Returns the tensor of Parameter([tensor[, requires_grad, ...]]). Without one, BUILD sets it.
at::Tensor make_parameter(const Nodes& arguments, std::size_t max_size) {
  check_description(
      arguments.size() <= max_size && (arguments.empty() || arguments[0]->plain.isTensor()),
      "parameter");
  return arguments.empty() ? at::empty({0}) : arguments[0]->plain.toTensor();
}

// (function, type, arguments, attributes)
at::Tensor make_tensor_with_attributes(const Nodes& arguments) {
  check_description(arguments.size() == 4 && arguments[0]->kind == PickleNode::Kind::kGlobal &&
                        arguments[0]->global.what != Global::kTensorWithAttributes &&
                        arguments[2]->is_sequence(),
                    "tensor");
  const c10::IValue value = value_of_call(arguments[0]->global, arguments[2]->items);
  check_description(value.isTensor(), "tensor");
  return value.toTensor();
}

// (tensor, dtype, device, requires_grad)
at::Tensor make_device_tensor(const Nodes& arguments) {
  check_description(arguments.size() == 4 && arguments[0]->plain.isTensor() &&
                        arguments[1]->global.dtype == arguments[0]->plain.toTensor().scalar_type(),
                    "tensor");
  return arguments[0]->plain.toTensor();
}

/// Python stores a byte as the Unicode character with its number, here in UTF-8.
at::Tensor bytes_of_latin_1(std::string_view text) {
  std::vector<char> bytes;
  bytes.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    const bool is_pair = (byte == 0xc2 || byte == 0xc3) && i + 1 < text.size();
    check_description(byte < 0x80 || is_pair, "string of bytes");
    bytes.push_back(static_cast<char>(is_pair ? byte << 6 | (text[++i] & 0x3f) : byte));
  }
  return tensor_of_bytes({bytes.data(), bytes.size()});
}

// () or (bytes) or (text, "latin1")
at::Tensor make_bytes(const Nodes& arguments) {
  if (arguments.empty()) return tensor_of_bytes("");
  const PickleNode& first = *arguments[0];
  if (arguments.size() == 1 && first.plain.isTensor()) return first.plain.toTensor();
  check_description(arguments.size() == 2 && first.is_text() && arguments[1]->is_text() &&
                        arguments[1]->plain.toStringRef().starts_with("latin"),
                    "string of bytes");
  return bytes_of_latin_1(first.plain.toStringRef());
}

at::Tensor make_complex(const Nodes& arguments) {
  check_description(
      arguments.size() == 2 && arguments[0]->plain.isDouble() && arguments[1]->plain.isDouble(),
      "complex number");
  return at::scalar_tensor(
      c10::complex<double>(arguments[0]->plain.toDouble(), arguments[1]->plain.toDouble()),
      at::kComplexDouble);
}

/// Returns str(device): "cpu" or "cuda:0".
std::string make_device(const Nodes& arguments) {
  check_description((arguments.size() == 1 || arguments.size() == 2) && arguments[0]->is_text() &&
                        (arguments.size() == 1 || arguments[1]->plain.isInt()),
                    "device");
  const std::string& type = arguments[0]->plain.toStringRef();
  return arguments.size() == 1 ? type : c10::str(type, ':', arguments[1]->plain.toInt());
}

// The keys of torch.save are short numbers. Without the limit, a pickle could refer to a long key
// again and again, and each time the reader would copy and compare it.
bool is_storage_key(const PickleNode& node) {
  constexpr std::size_t kMaxSize = 256;
  return node.is_text() && node.plain.toStringRef().size() <= kMaxSize;
}

/// Builds the value of a node from the values of its items, which must already be built.
void build(PickleNode& node) {
  switch (node.kind) {
    case PickleNode::Kind::kPlain:
      return;
    case PickleNode::Kind::kTuple:
    case PickleNode::Kind::kList: {
      std::vector<c10::IValue> items;
      items.reserve(node.items.size());
      for (const PickleNode* item : node.items) items.push_back(item->plain);
      if (node.kind == PickleNode::Kind::kList) {
        node.plain = list_of(items);
      } else {
        node.plain = c10::ivalue::Tuple::create(std::move(items));
      }
      return;
    }
    case PickleNode::Kind::kDict: {
      std::vector<std::pair<c10::IValue, c10::IValue>> entries;
      entries.reserve(node.items.size() / 2);
      for (std::size_t i = 0; i < node.items.size(); i += 2) {
        const c10::IValue& key = node.items[i]->plain;
        LINKBOY_CHECK(
            key.isString() || key.isInt() || key.isBool() || key.isDouble(),
            "it has a dict with a key that is a ", key.tagKind(),
            "; keys must be strings, numbers or bools. In Python, save {str(k): v for k, v in "
            "x.items()} in place of the dict x.");
        entries.emplace_back(key, node.items[i + 1]->plain);
      }
      node.plain = make_guarded_dict(entries);
      return;
    }
    case PickleNode::Kind::kStorage: {
      const auto dtype = node.global.dtype;
      const auto size = static_cast<int64_t>(node.storage.nbytes() / c10::elementSize(dtype));
      node.plain = rebuild_tensor(node.storage, dtype, 0, {size}, {1});
      return;
    }
    case PickleNode::Kind::kGlobal:
      LINKBOY_CHECK(node.plain.isString(),
                    "it contains a class or function as a value; only data can be read. Save its "
                    "name as a string.");
      return;
  }
}

class NodeConverter {
 public:
  explicit NodeConverter(std::size_t max_values) : max_values_(max_values) {}

  void convert(PickleNode& node, int depth) {
    // A container that contains itself exceeds this limit.
    LINKBOY_CHECK(depth + node.height <= kMaxTreeDepth, "its values are nested deeper than ",
                  kMaxTreeDepth,
                  " levels or contain each other without end. Save flat dicts and lists.");
    if (node.num_values > 0) return count_key_bytes(node.num_key_bytes);
    const std::size_t num_before = num_key_bytes_;
    convert_items(node, depth);
    node.num_key_bytes = num_key_bytes_ - num_before;
    build(node);
  }

 private:
  void convert_items(PickleNode& node, int depth) {
    std::size_t num_values = 1;
    int height = 0;
    bool is_key = node.kind == PickleNode::Kind::kDict;
    for (PickleNode* item : node.items) {
      convert(*item, depth + 1);
      if (is_key && item->plain.isString()) count_key_bytes(item->plain.toStringRef().size());
      is_key = node.kind == PickleNode::Kind::kDict && !is_key;
      num_values += item->num_values;
      height = std::max(height, item->height + 1);
      LINKBOY_CHECK(num_values <= max_values_,
                    "its containers contain each other so often that they expand to more than ",
                    max_values_, " values. Save flat dicts and lists.");
    }
    node.num_values = num_values;
    node.height = height;
  }

  /// Limits the keys, which every dict hashes, because a pickle can use a long key again and again.
  void count_key_bytes(std::size_t count) {
    constexpr std::size_t kPerValue = 32;
    num_key_bytes_ += count;
    LINKBOY_CHECK(num_key_bytes_ <= kPerValue * max_values_,
                  "its dicts repeat long keys so often that they expand to more than ",
                  kPerValue * max_values_, " bytes. Save dicts with shorter keys.");
  }

  std::size_t max_values_;
  std::size_t num_key_bytes_ = 0;  // with all repetitions
};

}  // namespace

// ("storage", type, key, device, number of elements[, None or (key, offset, number of elements)])
StorageId storage_of_id(const PickleNode& id) {
  const auto& parts = id.items;
  check_description(id.kind == PickleNode::Kind::kTuple &&
                        (parts.size() == 5 || parts.size() == 6) && parts[0]->is_text() &&
                        parts[0]->plain.toStringRef() == "storage" &&
                        parts[1]->kind == PickleNode::Kind::kGlobal &&
                        parts[1]->global.what == Global::kStorageType &&
                        is_storage_key(*parts[2]) && parts[4]->plain.isInt(),
                    "storage");
  StorageId storage{.key = parts[2]->plain.toStringRef(),
                    .num_elements = parts[4]->plain.toInt(),
                    .element_size = c10::elementSize(parts[1]->global.dtype)};
  if (parts.size() == 6 && parts[5]->kind == PickleNode::Kind::kTuple) {
    const auto& view = parts[5]->items;
    check_description(view.size() == 3 && is_storage_key(*view[0]) && view[1]->plain.isInt() &&
                          view[2]->plain.isInt(),
                      "storage");
    storage.view = {view[0]->plain.toStringRef(), view[1]->plain.toInt(), view[2]->plain.toInt()};
  }
  return storage;
}

at::Tensor tensor_of_bytes(std::string_view bytes) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

c10::IValue value_of_call(const GlobalEntry& function, const Nodes& arguments) {
  switch (function.what) {
    case Global::kTensorV1:
    case Global::kTensorV2:
    case Global::kTensorV3:
      return make_tensor(function.what, arguments);
    case Global::kTensorWithAttributes:
      return make_tensor_with_attributes(arguments);
    case Global::kDeviceTensor:
      return make_device_tensor(arguments);
    case Global::kParameter:
      check_description(!arguments.empty(), "parameter");
      return make_parameter(arguments, 4);
    case Global::kParameterType:
      return make_parameter(arguments, 2);
    case Global::kBytes:
      return make_bytes(arguments);
    case Global::kComplex:
      return make_complex(arguments);
    case Global::kDevice:
      return make_device(arguments);
    case Global::kLayout:
      check_description(arguments.size() == 1 && arguments[0]->is_text(), "layout");
      return arguments[0]->plain;
    default:
      throw Error(
          "its pickle is damaged: it calls something that is not a function. Use another copy.");
  }
}

c10::IValue to_ivalue(PickleNode& node, std::size_t max_values) {
  NodeConverter(max_values).convert(node, 0);
  return node.plain;
}

}  // namespace linkboy
