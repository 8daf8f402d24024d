// Executes the instructions of a pickle, with checks that make untrusted files safe to read.

#include "unpickler.hpp"

#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"
#include "pickle_calls.hpp"
#include "pickle_format.hpp"
#include "pickle_node.hpp"

namespace linkboy {
namespace {

using Node = PickleNode;

class Unpickler {
 public:
  Unpickler(PickleBytes& bytes, const StorageLoader& load_storage)
      : bytes_(bytes), begin_(bytes.position()), load_storage_(load_storage) {}

  c10::IValue run() {
    for (Op op = bytes_.take_op(); op != Op::kStop; op = bytes_.take_op()) execute(op);
    return to_ivalue(*pop(), max_values());
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

  /// Limits the copies of containers and strings, which a pickle can request again and again.
  void count_copies(uint64_t count) {
    num_copied_ += count;
    LINKBOY_CHECK(num_copied_ <= max_values(),
                  "it copies containers or strings so often that they expand to more than ",
                  max_values(), " values or bytes. Save plain dicts, lists and strings.");
  }

  /// Each value occupies at least one byte of the file, unless containers are shared.
  uint64_t max_values() const {
    constexpr uint64_t kAlwaysAllowed = uint64_t{1} << 16;
    return 4 * (bytes_.position() - begin_) + kAlwaysAllowed;
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

  void push_bytes(std::size_t size) { push_plain(tensor_of_bytes(bytes_.take(size))); }

  void push_global(const std::string& name) {
    const GlobalEntry* entry = find_global(name);
    if (entry == nullptr) refuse(name);
    Node* node = push(Node::Kind::kGlobal);
    node->global = *entry;
    if (entry->what == Global::kDtype) node->plain = name;  // its value outside of tensors
  }

  /// @throws Error that describes an object that is not data.
  [[noreturn]] void refuse(const std::string& name) const {
    if (const RefusedKind* kind = find_refused_kind(name)) {
      const bool is_after_name = !stack_.empty() && is_text(*stack_.back());
      const std::string place =
          is_after_name
              ? " (after the string " + quote_name(stack_.back()->plain.toStringRef()) + ")"
              : "";
      throw Error(c10::str("it contains ", kind->what, place, ", which cannot be read. In Python, ",
                           "save ", kind->instead, " in place of the value x."));
    }
    throw Error(
        c10::str("it refers to the Python object ", quote_name(name),
                 "; only data can be read: tensors, numbers, strings, None, and lists, "
                 "tuples and dicts of these. Save x.state_dict() rather than the object x."));
  }

  void execute(Op op);
  void load_persistent(const Node& id);
  void reduce(const Node& function, const Node& arguments);
  void build(const Node& state);
  void push_dict_of_pairs(const std::vector<Node*>& arguments);
  void push_copy(Node::Kind kind, const Node* from);

  PickleBytes& bytes_;
  uint64_t begin_;
  const StorageLoader& load_storage_;
  std::deque<Node> nodes_;
  std::vector<Node*> stack_;
  std::vector<std::size_t> marks_;
  // Not hashed: the file chooses the keys and could make all hashes collide.
  std::map<uint64_t, Node*> memo_;
  std::map<std::string, c10::Storage, std::less<>> storages_;
  uint64_t num_copied_ = 0;  // items of containers and bytes of strings
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
    case Op::kShortBinString:  // a str of Python 2
      push_string(bytes_.take_unsigned(1));
      return;
    case Op::kBinUnicode:
    case Op::kBinString:
      push_string(bytes_.take_unsigned(4));
      return;
    case Op::kBinUnicode8:
      push_string(bytes_.take_unsigned(8));
      return;
    case Op::kShortBinBytes:
      push_bytes(bytes_.take_unsigned(1));
      return;
    case Op::kBinBytes:
      push_bytes(bytes_.take_unsigned(4));
      return;
    case Op::kBinBytes8:
    case Op::kByteArray8:
      push_bytes(bytes_.take_unsigned(8));
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
    case Op::kEmptySet:
      push(Kind::kList);
      return;
    case Op::kAppend:
      extend(Kind::kList, pop_items(1));
      return;
    case Op::kAppends:
    case Op::kAddItems:
      extend(Kind::kList, pop_to_mark());
      return;
    case Op::kFrozenSet:
      push(Kind::kList)->items = pop_to_mark();
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
      LINKBOY_CHECK(is_text(*names[0]) && is_text(*names[1]),
                    "its pickle is damaged: a name is not a string. Use another copy.");
      push_global(names[0]->plain.toStringRef() + "." + names[1]->plain.toStringRef());
      return;
    }
    case Op::kBinPersId:
      load_persistent(*pop());
      return;
    case Op::kReduce:
    case Op::kNewObj: {
      const auto call = pop_items(2);
      reduce(*call[0], *call[1]);
      return;
    }
    case Op::kBuild:
      build(*pop());
      return;
    default:
      LINKBOY_CHECK(false, "its pickle has the unknown instruction ", static_cast<int>(op),
                    " at byte ", bytes_.position() - 1,
                    ": it is damaged, or contains more than data. Save tensors, numbers, strings, "
                    "None, and lists, tuples and dicts of these.");
  }
}

void Unpickler::load_persistent(const Node& id) {
  const StorageId storage = storage_of_id(id);
  const std::string& key = storage.view ? storage.view->key : storage.key;
  auto found = storages_.find(key);
  if (found == storages_.end()) found = storages_.emplace(key, load_storage_(storage)).first;
  Node* node = push(Node::Kind::kStorage);
  node->storage = found->second;
  node->global = id.items[1]->global;
}

/// Pushes the dict of OrderedDict(), or of OrderedDict([[key, value], ...]) as Python 2 writes it.
void Unpickler::push_dict_of_pairs(const std::vector<Node*>& arguments) {
  const auto check = [](bool is_valid) {
    LINKBOY_CHECK(is_valid, "it contains an OrderedDict of an unknown form. Save plain dicts.");
  };
  check(arguments.size() <= 1);
  Node* dict = push(Node::Kind::kDict);
  if (arguments.empty()) return;
  check(is_sequence(*arguments[0]));
  count_copies(2 * arguments[0]->items.size());
  for (const Node* pair : arguments[0]->items) {
    check(is_sequence(*pair) && pair->items.size() == 2);
    dict->items.insert(dict->items.end(), pair->items.begin(), pair->items.end());
  }
}

/// Pushes a new container with the items of another one, if any.
void Unpickler::push_copy(Node::Kind kind, const Node* from) {
  Node* copy = push(kind);
  if (from == nullptr) return;
  LINKBOY_CHECK(kind == Node::Kind::kDict ? from->kind == kind : is_sequence(*from),
                "it contains a set or a dict of an unknown form. Save plain dicts and lists.");
  count_copies(from->items.size());
  copy->items = from->items;
}

/// Sets the state of the value on the stack.
void Unpickler::build(const Node& state) {
  Node* target = top();
  // The state of an OrderedDict is the attribute `_metadata` of a state_dict(): versions of
  // Python's modules, which linkboy does not need.
  if (target->kind == Node::Kind::kDict) return;
  LINKBOY_CHECK(target->plain.isTensor() && state.kind == Node::Kind::kTuple,
                "it sets attributes of a value that is not a dict. Save plain dicts.");
  // PyTorch up to 0.3 sets (requires_grad, is_volatile, hooks) of a parameter; or the tensor, its
  // gradient, the hooks, requires_grad and is_volatile.
  if (state.items.size() == 3) return;
  LINKBOY_CHECK(state.items.size() == 5 && state.items[0]->plain.isTensor(),
                "its description of a parameter is damaged. Use another copy.");
  target->plain = state.items[0]->plain;
}

void Unpickler::reduce(const Node& function, const Node& arguments) {
  LINKBOY_CHECK(
      function.kind == Node::Kind::kGlobal && arguments.kind == Node::Kind::kTuple,
      "its pickle is damaged: it calls something that is not a function. Use another copy.");
  const auto& items = arguments.items;
  switch (function.global.what) {
    case Global::kOrderedDict:
      push_dict_of_pairs(items);
      return;
    case Global::kDict: {
      const bool has_items = items.size() == 1 && items[0]->kind == Node::Kind::kDict;
      push_copy(Node::Kind::kDict, has_items ? items[0] : nullptr);  // otherwise a factory
      return;
    }
    case Global::kList:
      push_copy(Node::Kind::kList, items.empty() ? nullptr : items[0]);
      return;
    case Global::kSize:
      LINKBOY_CHECK(items.size() == 1 && items[0]->kind == Node::Kind::kTuple,
                    "its description of a size is damaged. Use another copy.");
      stack_.push_back(items[0]);
      return;
    case Global::kBytes:
    case Global::kDevice:
      if (!items.empty() && is_text(*items[0])) {
        count_copies(items[0]->plain.toStringRef().size());
      }
      [[fallthrough]];
    default:
      push_plain(value_of_call(function.global, items));
  }
}

}  // namespace

c10::IValue unpickle(std::string_view pickle, const StorageLoader& load_storage) {
  PickleBytes bytes(pickle);
  return unpickle(bytes, load_storage);
}

c10::IValue unpickle(PickleBytes& bytes, const StorageLoader& load_storage) {
  return Unpickler(bytes, load_storage).run();
}

}  // namespace linkboy
