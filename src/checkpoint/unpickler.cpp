#include "unpickler.hpp"

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"
#include "pickle_format.hpp"
#include "pickle_node.hpp"
#include "rebuild_tensor.hpp"

namespace linkboy {
namespace {

using Node = PickleNode;

class Unpickler {
 public:
  Unpickler(std::string_view bytes, const StorageLoader& load_storage)
      : bytes_(bytes), load_storage_(load_storage) {}

  c10::IValue run() {
    for (Op op = bytes_.take_op(); op != Op::kStop; op = bytes_.take_op()) execute(op);
    // Each value occupies at least one byte of the file, unless containers are shared.
    constexpr std::size_t kAlwaysAllowed = std::size_t{1} << 16;
    return to_ivalue(*pop(), /*max_values=*/4 * bytes_.size() + kAlwaysAllowed);
  }

 private:
  Node* push(Node::Kind kind) {
    Node& node = nodes_.emplace_back();
    node.kind = kind;
    stack_.push_back(&node);
    return &node;
  }

  void push_plain(c10::IValue value) { push(Node::Kind::kPlain)->plain = std::move(value); }
  void push_string(std::size_t size) { push_plain(c10::IValue(std::string(bytes_.take(size)))); }

  Node* top() const {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    LINKBOY_CHECK(stack_.size() > floor, "its pickle is damaged at byte ", bytes_.position(),
                  ": a value is missing. Use another copy.");
    return stack_.back();
  }

  Node* pop() {
    Node* node = top();
    stack_.pop_back();
    return node;
  }

  std::vector<Node*> pop_to_mark() {
    LINKBOY_CHECK(!marks_.empty(), "its pickle is damaged at byte ", bytes_.position(),
                  ": a mark is missing. Use another copy.");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Node*> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return items;
  }

  std::vector<Node*> pop_items(std::size_t count) {
    std::vector<Node*> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }

  void push_tuple(std::vector<Node*> items) { push(Node::Kind::kTuple)->items = std::move(items); }

  void extend(Node::Kind kind, const std::vector<Node*>& items) {
    Node* target = top();
    LINKBOY_CHECK(target->kind == kind && (kind == Node::Kind::kList || items.size() % 2 == 0),
                  "its pickle is damaged at byte ", bytes_.position(),
                  ": items do not fit their container. Use another copy.");
    target->items.insert(target->items.end(), items.begin(), items.end());
  }

  void memoize(uint64_t index) { memo_[index] = top(); }

  void push_memoized(uint64_t index) {
    const auto found = memo_.find(index);
    LINKBOY_CHECK(found != memo_.end(), "its pickle is damaged at byte ", bytes_.position(),
                  ": it refers to value ", index, ", which does not exist. Use another copy.");
    stack_.push_back(found->second);
  }

  void push_global(const std::string& name) {
    const GlobalEntry* entry = find_global(name);
    LINKBOY_CHECK(entry != nullptr, "it refers to the Python object ", quote_name(name),
                  "; only data can be read: tensors, numbers, strings, None, and lists, tuples "
                  "and dicts of these. Save a state_dict() rather than the object.");
    push(Node::Kind::kGlobal)->global = *entry;
  }

  void execute(Op op);
  void load_persistent(const Node& id);
  void reduce(const Node& function, const Node& arguments);
  at::Tensor make_tensor(const std::vector<Node*>& arguments, bool has_dtype);

  PickleBytes bytes_;
  const StorageLoader& load_storage_;
  std::deque<Node> nodes_;
  std::vector<Node*> stack_;
  std::vector<std::size_t> marks_;
  // Not hashed: the file chooses the keys and could make all hashes collide.
  std::map<uint64_t, Node*> memo_;
  std::map<std::string, c10::Storage, std::less<>> storages_;
};

void Unpickler::execute(Op op) {
  using Kind = Node::Kind;
  switch (op) {
    case Op::kProtocol:
      bytes_.take(1);
      return;
    case Op::kFrame:
      bytes_.take(8);
      return;
    case Op::kMark:
      marks_.push_back(stack_.size());
      return;

    case Op::kNone:
      push_plain({});
      return;
    case Op::kNewTrue:
      push_plain(true);
      return;
    case Op::kNewFalse:
      push_plain(false);
      return;
    case Op::kBinInt1:
      push_plain(static_cast<int64_t>(bytes_.take_unsigned(1)));
      return;
    case Op::kBinInt2:
      push_plain(static_cast<int64_t>(bytes_.take_unsigned(2)));
      return;
    case Op::kBinInt:
      push_plain(bytes_.take_signed(4));
      return;
    case Op::kLong1:
      push_plain(bytes_.take_signed(bytes_.take_unsigned(1)));
      return;
    case Op::kBinFloat:
      push_plain(bytes_.take_double());
      return;
    case Op::kShortBinUnicode:
      push_string(bytes_.take_unsigned(1));
      return;
    case Op::kBinUnicode:
      push_string(bytes_.take_unsigned(4));
      return;
    case Op::kBinUnicode8:
      push_string(bytes_.take_unsigned(8));
      return;

    case Op::kEmptyTuple:
      push(Kind::kTuple);
      return;
    case Op::kTuple:
      push_tuple(pop_to_mark());
      return;
    case Op::kTuple1:
      push_tuple(pop_items(1));
      return;
    case Op::kTuple2:
      push_tuple(pop_items(2));
      return;
    case Op::kTuple3:
      push_tuple(pop_items(3));
      return;
    case Op::kEmptyList:
      push(Kind::kList);
      return;
    case Op::kAppend:
      extend(Kind::kList, pop_items(1));
      return;
    case Op::kAppends:
      extend(Kind::kList, pop_to_mark());
      return;
    case Op::kEmptyDict:
      push(Kind::kDict);
      return;
    case Op::kSetItem:
      extend(Kind::kDict, pop_items(2));
      return;
    case Op::kSetItems:
      extend(Kind::kDict, pop_to_mark());
      return;

    case Op::kMemoize:
      memoize(memo_.size());
      return;
    case Op::kBinPut:
      memoize(bytes_.take_unsigned(1));
      return;
    case Op::kLongBinPut:
      memoize(bytes_.take_unsigned(4));
      return;
    case Op::kBinGet:
      push_memoized(bytes_.take_unsigned(1));
      return;
    case Op::kLongBinGet:
      push_memoized(bytes_.take_unsigned(4));
      return;

    case Op::kGlobal: {
      const std::string module = bytes_.take_line();
      push_global(module + "." + bytes_.take_line());
      return;
    }
    case Op::kStackGlobal: {
      const auto names = pop_items(2);
      LINKBOY_CHECK(names[0]->plain.isString() && names[1]->plain.isString(),
                    "its pickle is damaged: a name is not a string. Use another copy.");
      push_global(names[0]->plain.toStringRef() + "." + names[1]->plain.toStringRef());
      return;
    }
    case Op::kBinPersId:
      load_persistent(*pop());
      return;
    case Op::kReduce: {
      const auto call = pop_items(2);
      reduce(*call[0], *call[1]);
      return;
    }
    case Op::kBuild:
      // The state of an OrderedDict is the attribute `_metadata` of a state_dict(): versions of
      // Python's modules, which linkboy does not need.
      pop();
      LINKBOY_CHECK(top()->kind == Kind::kDict,
                    "it sets attributes of a value that is not a dict. Save plain dicts.");
      return;
    default:
      LINKBOY_CHECK(false, "its pickle has the unknown instruction ", static_cast<int>(op),
                    " at byte ", bytes_.position() - 1,
                    ": it is damaged, or contains more than data (bytes, a set, an object). Save "
                    "tensors, numbers, strings, None, and lists, tuples and dicts of these.");
  }
}

bool is_string(const Node* node) { return node->plain.isString(); }

int64_t int_of(const Node* node) {
  LINKBOY_CHECK(node->plain.isInt(), "its description of a tensor is damaged. Use another copy.");
  return node->plain.toInt();
}

std::vector<int64_t> ints_of(const Node* node) {
  LINKBOY_CHECK((node->kind == Node::Kind::kTuple || node->kind == Node::Kind::kList) &&
                    node->items.size() <= kMaxDimensions,
                "its description of a tensor is damaged. Use another copy.");
  std::vector<int64_t> result;
  for (const Node* item : node->items) result.push_back(int_of(item));
  return result;
}

// ("storage", type, key, device, number of elements)
void Unpickler::load_persistent(const Node& id) {
  const auto& parts = id.items;
  LINKBOY_CHECK(id.kind == Node::Kind::kTuple && parts.size() == 5 && is_string(parts[0]) &&
                    parts[0]->plain.toStringRef() == "storage" &&
                    parts[1]->kind == Node::Kind::kGlobal &&
                    parts[1]->global.what == Global::kStorageType && is_string(parts[2]),
                "its description of a storage is damaged. Use another copy.");
  const std::string& key = parts[2]->plain.toStringRef();
  auto found = storages_.find(key);
  if (found == storages_.end()) found = storages_.emplace(key, load_storage_(key)).first;
  Node* node = push(Node::Kind::kStorage);
  node->storage = found->second;
  node->global = parts[1]->global;
}

// (storage, offset, sizes, strides, requires_grad, hooks[, dtype][, flags])
at::Tensor Unpickler::make_tensor(const std::vector<Node*>& arguments, bool has_dtype) {
  const std::size_t num_fixed = has_dtype ? 7 : 6;
  LINKBOY_CHECK(arguments.size() >= num_fixed && arguments.size() <= num_fixed + 1 &&
                    arguments[0]->kind == Node::Kind::kStorage &&
                    (!has_dtype || (arguments[6]->kind == Node::Kind::kGlobal &&
                                    arguments[6]->global.what == Global::kDtype)),
                "its description of a tensor is damaged. Use another copy.");
  LINKBOY_CHECK(
      arguments.size() == num_fixed || arguments[num_fixed]->items.empty(),
      "it contains a tensor that is a conjugate or negated view; such views cannot be read. "
      "Save its clone().");
  const Node& storage = *arguments[0];
  const auto dtype = has_dtype ? arguments[6]->global.dtype : storage.global.dtype;
  return rebuild_tensor(storage.storage, dtype, int_of(arguments[1]), ints_of(arguments[2]),
                        ints_of(arguments[3]));
}

void Unpickler::reduce(const Node& function, const Node& arguments) {
  LINKBOY_CHECK(
      function.kind == Node::Kind::kGlobal && arguments.kind == Node::Kind::kTuple,
      "its pickle is damaged: it calls something that is not a function. Use another copy.");
  const auto& items = arguments.items;
  switch (function.global.what) {
    case Global::kOrderedDict:
      LINKBOY_CHECK(items.empty(),
                    "it contains an OrderedDict of an unknown form. Save plain dicts.");
      push(Node::Kind::kDict);
      return;
    case Global::kTensorV2:
      push_plain(make_tensor(items, false));
      return;
    case Global::kTensorV3:
      push_plain(make_tensor(items, true));
      return;
    case Global::kParameter:
      LINKBOY_CHECK(items.size() == 3 && items[0]->plain.isTensor(),
                    "its description of a parameter is damaged. Use another copy.");
      push_plain(items[0]->plain);
      return;
    case Global::kSize:
      LINKBOY_CHECK(items.size() == 1 && items[0]->kind == Node::Kind::kTuple,
                    "its description of a size is damaged. Use another copy.");
      stack_.push_back(items[0]);
      return;
    case Global::kStorageType:
    case Global::kDtype:
      LINKBOY_CHECK(
          false,
          "its pickle is damaged: it calls something that is not a function. Use another copy.");
  }
}

}  // namespace

c10::IValue unpickle(std::string_view pickle, const StorageLoader& load_storage) {
  return Unpickler(pickle, load_storage).run();
}

}  // namespace linkboy
