#include "pickle_node.hpp"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <utility>

#include "checkpoint/guarded_dict.hpp"
#include "linkboy/error.hpp"
#include "value_tree.hpp"

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
        LINKBOY_CHECK(key.isString() || key.isInt() || key.isBool() || key.isDouble(),
                      "it has a dict with a key that is a ", key.tagKind(),
                      "; keys must be strings, numbers or bools. Save it with such keys.");
        entries.emplace_back(key, node.items[i + 1]->plain);
      }
      node.plain = make_guarded_dict(entries);
      return;
    }
    case PickleNode::Kind::kGlobal:
    case PickleNode::Kind::kStorage:
      throw Error(
          "it contains a bare type or storage as a value; only data can be read. Save a "
          "tensor rather than its storage, and a dtype as a string.");
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
    if (node.num_values > 0) return;
    convert_items(node, depth);
    build(node);
  }

 private:
  void convert_items(PickleNode& node, int depth) {
    std::size_t num_values = 1;
    int height = 0;
    for (PickleNode* item : node.items) {
      convert(*item, depth + 1);
      num_values += item->num_values;
      height = std::max(height, item->height + 1);
      LINKBOY_CHECK(num_values <= max_values_,
                    "its containers contain each other so often that they expand to more than ",
                    max_values_, " values. Save flat dicts and lists.");
    }
    node.num_values = num_values;
    node.height = height;
  }

  std::size_t max_values_;
};

}  // namespace

c10::IValue to_ivalue(PickleNode& node, std::size_t max_values) {
  NodeConverter(max_values).convert(node, 0);
  return node.plain;
}

}  // namespace linkboy
