// Executes the instructions of a pickle, with checks that make untrusted files safe to read.

#include "unpickler.hpp"

#include <bit>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "checkpoint/file_bytes.hpp"
#include "linkboy/error.hpp"
#include "pickle_format.hpp"
#include "pickle_node.hpp"

namespace linkboy {
namespace {

using Node = PickleNode;

class Unpickler {
 public:
  Unpickler(ByteReader& bytes, const StorageLoader& load_storage)
      : bytes_(bytes), begin_(bytes.position()), load_storage_(load_storage) {}

  c10::IValue run() {
    for (Op op = take_op(); op != Op::kStop; op = take_op()) execute(op);
    return to_ivalue(*pop(), max_values());
  }

 private:
  Op take_op() { return static_cast<Op>(bytes_.take(1).front()); }

  /// Reads a signed number of `size` bytes.
  int64_t take_signed(std::size_t size) {
    LINKBOY_CHECK(
        size <= 8, "it contains an integer of ", size,
        " bytes; integers must fit into 64 bits. In Python, save float(x) or str(x) in place of "
        "the integer x.");
    if (size == 0) return 0;
    const auto shift = 64 - 8 * size;
    return static_cast<int64_t>(bytes_.take_unsigned(size) << shift) >> shift;
  }

  /// Reads a double, which is the only big-endian number in the format.
  double take_double() { return std::bit_cast<double>(__builtin_bswap64(bytes_.take_unsigned(8))); }

  Node* push(Node::Kind kind) {
    Node& node = nodes_.emplace_back();
    node.kind = kind;
    stack_.push_back(&node);
    return &node;
  }

  void push_plain(c10::IValue value) { push(Node::Kind::kPlain)->plain = std::move(value); }
  void push_string(std::size_t size) { push_plain(c10::IValue(std::string(bytes_.take(size)))); }

  void check(bool is_valid, const char* damage) const {
    LINKBOY_CHECK(is_valid, "its pickle is damaged at byte ", bytes_.position(), ": ", damage,
                  ". Use another copy.");
  }

  Node* top() const {
    check(stack_.size() > (marks_.empty() ? 0 : marks_.back()), "a value is missing");
    return stack_.back();
  }

  Node* pop() {
    Node* node = top();
    stack_.pop_back();
    return node;
  }

  std::vector<Node*> pop_to_mark() {
    check(!marks_.empty(), "a mark is missing");
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
    check(target->kind == kind && (kind == Node::Kind::kList || items.size() % 2 == 0),
          "items do not fit their container");
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
    const bool is_after_text = !stack_.empty() && stack_.back()->is_text();
    const auto* previous = is_after_text ? &stack_.back()->plain.toStringRef() : nullptr;
    const GlobalEntry& entry = find_global(name, previous);
    Node* node = push(Node::Kind::kGlobal);
    node->global = entry;
    if (entry.what == Global::kDtype) node->plain = name;  // its value outside of tensors
  }

  void execute(Op op);
  void load_persistent(const Node& id);
  void reduce(const Node& function, const Node& arguments);
  void build(const Node& state);
  void push_dict_of_pairs(const std::vector<Node*>& arguments);
  void push_copy(Node::Kind kind, const Node* from);

  ByteReader& bytes_;
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
      return marks_.push_back(stack_.size());

    case Op::kNone:
      push_plain({});
      return;
    case Op::kNewTrue:
      return push_plain(true);
    case Op::kNewFalse:
      return push_plain(false);
    case Op::kBinInt1:
      return push_plain(static_cast<int64_t>(bytes_.take_unsigned(1)));
    case Op::kBinInt2:
      return push_plain(static_cast<int64_t>(bytes_.take_unsigned(2)));
    case Op::kBinInt:
      return push_plain(take_signed(4));
    case Op::kLong1:
      return push_plain(take_signed(bytes_.take_unsigned(1)));
    case Op::kBinFloat:
      return push_plain(take_double());
    case Op::kShortBinUnicode:
    case Op::kShortBinString:  // a str of Python 2
      return push_string(bytes_.take_unsigned(1));
    case Op::kBinUnicode:
    case Op::kBinString:
      return push_string(bytes_.take_unsigned(4));
    case Op::kBinUnicode8:
      return push_string(bytes_.take_unsigned(8));
    case Op::kShortBinBytes:
      return push_bytes(bytes_.take_unsigned(1));
    case Op::kBinBytes:
      return push_bytes(bytes_.take_unsigned(4));
    case Op::kBinBytes8:
    case Op::kByteArray8:
      return push_bytes(bytes_.take_unsigned(8));

    case Op::kEmptyTuple:
      push(Kind::kTuple);
      return;
    case Op::kTuple:
      return push_tuple(pop_to_mark());
    case Op::kTuple1:
      return push_tuple(pop_items(1));
    case Op::kTuple2:
      return push_tuple(pop_items(2));
    case Op::kTuple3:
      return push_tuple(pop_items(3));
    case Op::kEmptyList:
    case Op::kEmptySet:
      push(Kind::kList);
      return;
    case Op::kAppend:
      return extend(Kind::kList, pop_items(1));
    case Op::kAppends:
    case Op::kAddItems:
      return extend(Kind::kList, pop_to_mark());
    case Op::kFrozenSet:
      push(Kind::kList)->items = pop_to_mark();
      return;
    case Op::kEmptyDict:
      push(Kind::kDict);
      return;
    case Op::kSetItem:
      return extend(Kind::kDict, pop_items(2));
    case Op::kSetItems:
      return extend(Kind::kDict, pop_to_mark());

    case Op::kMemoize:
      return memoize(memo_.size());
    case Op::kBinPut:
      return memoize(bytes_.take_unsigned(1));
    case Op::kLongBinPut:
      return memoize(bytes_.take_unsigned(4));
    case Op::kBinGet:
      return push_memoized(bytes_.take_unsigned(1));
    case Op::kLongBinGet:
      return push_memoized(bytes_.take_unsigned(4));

    case Op::kGlobal: {
      const std::string module = bytes_.take_line();
      return push_global(module + "." + bytes_.take_line());
    }
    case Op::kStackGlobal: {
      const auto names = pop_items(2);
      check(names[0]->is_text() && names[1]->is_text(), "a name is not a string");
      return push_global(names[0]->plain.toStringRef() + "." + names[1]->plain.toStringRef());
    }
    case Op::kBinPersId:
      return load_persistent(*pop());
    case Op::kReduce:
    case Op::kNewObj: {
      const auto call = pop_items(2);
      return reduce(*call[0], *call[1]);
    }
    case Op::kBuild:
      return build(*pop());
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
  check(arguments[0]->is_sequence());
  count_copies(2 * arguments[0]->items.size());
  for (const Node* pair : arguments[0]->items) {
    check(pair->is_sequence() && pair->items.size() == 2);
    dict->items.insert(dict->items.end(), pair->items.begin(), pair->items.end());
  }
}

/// Pushes a new container with the items of another one, if any.
void Unpickler::push_copy(Node::Kind kind, const Node* from) {
  Node* copy = push(kind);
  if (from == nullptr) return;
  LINKBOY_CHECK(kind == Node::Kind::kDict ? from->kind == kind : from->is_sequence(),
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
  check(function.kind == Node::Kind::kGlobal && arguments.kind == Node::Kind::kTuple,
        "it calls something that is not a function");
  const auto& items = arguments.items;
  switch (function.global.what) {
    case Global::kOrderedDict:
      return push_dict_of_pairs(items);
    case Global::kDict: {
      const bool has_items = items.size() == 1 && items[0]->kind == Node::Kind::kDict;
      push_copy(Node::Kind::kDict, has_items ? items[0] : nullptr);  // otherwise a factory
      return;
    }
    case Global::kList:
      return push_copy(Node::Kind::kList, items.empty() ? nullptr : items[0]);
    case Global::kSize:
      LINKBOY_CHECK(items.size() == 1 && items[0]->kind == Node::Kind::kTuple,
                    "its description of a size is damaged. Use another copy.");
      stack_.push_back(items[0]);
      return;
    case Global::kBytes:
    case Global::kDevice:
      if (!items.empty() && items[0]->is_text()) {
        count_copies(items[0]->plain.toStringRef().size());
      }
      [[fallthrough]];
    default:
      push_plain(value_of_call(function.global, items));
  }
}

}  // namespace

c10::IValue unpickle(std::string_view pickle, const StorageLoader& load_storage) {
  ByteReader bytes(pickle, "its pickle");
  return unpickle(bytes, load_storage);
}

c10::IValue unpickle(ByteReader& bytes, const StorageLoader& load_storage) {
  return Unpickler(bytes, load_storage).run();
}

}  // namespace linkboy
