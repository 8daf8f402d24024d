// Converts finished nodes to values, within limits that a pickle cannot exceed by repetition.

#include "pickle_node.hpp"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <utility>

#include "checkpoint/collision_safe_dict.hpp"
#include "ivalue_tree.hpp"
#include "linkboy/error.hpp"
#include "rebuild_tensor.hpp"

namespace linkboy {
namespace {

/// Builds the value of a node from the values of its items, which must already be built.
void build(PickleNode& node) {
  switch (node.kind) {
    case PickleNode::Kind::kPlain:
      return;
    case PickleNode::Kind::kTuple: {
      std::vector<c10::IValue> elements;
      elements.reserve(node.items.size());
      for (const PickleNode* item : node.items) elements.push_back(item->plain);
      node.plain = c10::ivalue::Tuple::create(std::move(elements));
      return;
    }
    case PickleNode::Kind::kList: {
      c10::impl::GenericList list(c10::AnyType::get());
      list.reserve(node.items.size());
      for (const PickleNode* item : node.items) list.push_back(item->plain);
      node.plain = list;
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

c10::IValue to_ivalue(PickleNode& node, std::size_t max_values) {
  NodeConverter(max_values).convert(node, 0);
  return node.plain;
}

}  // namespace linkboy
