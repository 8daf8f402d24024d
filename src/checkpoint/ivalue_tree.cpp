// Maps the leaves of nested lists, tuples and dicts, names a value's place in them for errors, and
// builds dicts after a check that their keys were not chosen to collide.

#include "checkpoint/ivalue_tree.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"

namespace linkboy {
namespace {

class LeafMapper {
 public:
  explicit LeafMapper(const MapLeaf& map) : map_(map) {}

  c10::IValue rebuild(const c10::IValue& value) {
    LINKBOY_CHECK(path_.size() <= std::size_t{kMaxTreeDepth}, quote_path(path_),
                  " is nested deeper than ", kMaxTreeDepth,
                  " levels, which is the limit of a checkpoint. Flatten it.");
    if (value.isList()) return list_of(rebuild_items(value.toListRef()));
    if (value.isTuple()) {
      return c10::ivalue::Tuple::create(rebuild_items(value.toTupleRef().elements()));
    }
    if (value.isGenericDict()) return rebuild_dict(value.toGenericDict());
    return map_(value, path_);
  }

 private:
  c10::IValue rebuild_dict(const c10::impl::GenericDict& entries) {
    std::vector<std::pair<c10::IValue, c10::IValue>> rebuilt;
    rebuilt.reserve(entries.size());
    for (const auto& entry : entries) {
      const c10::IValue& key = entry.key();
      LINKBOY_CHECK(key.isString() || key.isInt() || key.isBool() || key.isDouble(),
                    quote_path(path_), " has a key that is a ", key.tagKind(),
                    "; keys must be strings, numbers or bools. Use another key.");
      auto step = key.isString() ? key.toStringRef() : c10::str("[", key, "]");
      rebuilt.emplace_back(key, rebuild_at(std::move(step), entry.value()));
    }
    return make_guarded_dict(rebuilt);
  }

  std::vector<c10::IValue> rebuild_items(c10::ArrayRef<c10::IValue> items) {
    std::vector<c10::IValue> rebuilt;
    rebuilt.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      rebuilt.push_back(rebuild_at(c10::str("[", i, "]"), items[i]));
    }
    return rebuilt;
  }

  c10::IValue rebuild_at(std::string step, const c10::IValue& value) {
    path_.push_back(std::move(step));
    c10::IValue result = rebuild(value);
    path_.pop_back();
    return result;
  }

  const MapLeaf& map_;
  ValuePath path_;
};

/// Lays the keys out as the table would with 8 to 16 slots per key. If they fit, the real table is
/// not larger than that.
void check_hashes(const std::vector<std::pair<c10::IValue, c10::IValue>>& entries) {
  const int bits = static_cast<int>(std::bit_width(entries.size())) + 3;
  constexpr uint64_t kMultiplier = 11400714819323198485U;  // of the table's Fibonacci hashing
  std::vector<uint64_t> homes;
  homes.reserve(entries.size());
  for (const auto& [key, value] : entries) {
    homes.push_back(kMultiplier * c10::detail::DictKeyHash()(key) >> (64 - bits));
  }
  std::sort(homes.begin(), homes.end());
  uint64_t next = 0;
  for (const uint64_t home : homes) {
    next = std::max(next, home);
    LINKBOY_CHECK(next - home < static_cast<uint64_t>(bits),
                  "it has a dict whose keys were chosen to exhaust the memory. Do not trust it.");
    ++next;
  }
}

}  // namespace

std::string quote_path(const ValuePath& path) {
  std::string joined;
  for (const auto& step : path)
    joined += (joined.empty() || step.starts_with('[') ? "" : ".") + step;
  return path.empty() ? "the checkpoint" : quote_name(joined);
}

c10::IValue map_leaves(const c10::IValue& value, const MapLeaf& map) {
  return LeafMapper(map).rebuild(value);
}

c10::impl::GenericDict make_guarded_dict(
    const std::vector<std::pair<c10::IValue, c10::IValue>>& entries) {
  check_hashes(entries);
  c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
  for (const auto& [key, value] : entries) dict.insert_or_assign(key, value);
  return dict;
}

StateDict deep_copy(const StateDict& state) {
  StateDict copy;
  for (const auto& [name, value] : state.entries()) copy.set(name, value.deepcopy());
  return copy;
}

}  // namespace linkboy
