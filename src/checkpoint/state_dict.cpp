// An ordered map from names to values. An index by name is built only if it has many entries.

#include "linkboy/checkpoint/state_dict.hpp"

#include <algorithm>
#include <utility>

#include "checkpoint/ivalue_tree.hpp"
#include "linkboy/error.hpp"
#include "linkboy/util/printable.hpp"

namespace linkboy {
namespace {

/// Up to this number of names, comparing them one by one is faster than a map.
constexpr std::size_t kMaxSearched = 32;

std::string joined_keys(const std::vector<StateDict::Entry>& entries) {
  constexpr std::size_t kMaxListed = 50;
  std::string joined;
  for (std::size_t i = 0; i < entries.size() && i < kMaxListed; ++i) {
    joined += (joined.empty() ? "" : ", ") + printable(entries[i].first, kMaxShownName);
  }
  if (entries.size() > kMaxListed)
    joined += c10::str(" and ", entries.size() - kMaxListed, " more");
  return joined.empty() ? "none" : joined;
}

}  // namespace

StateDict::StateDict(std::initializer_list<Entry> entries) {
  for (const auto& [key, value] : entries) set(key, value);
}

StateDict::StateDict(const NamedTensors& tensors) {
  entries_.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) add(name, tensor);
}

StateDict StateDict::from_ivalue(const c10::IValue& value, std::string_view what) {
  LINKBOY_CHECK(value.isGenericDict(), what, " is a ", value.tagKind(),
                "; it must be a dict from names to values.");
  StateDict result;
  for (const auto& entry : value.toGenericDict()) {
    LINKBOY_CHECK(entry.key().isString(), what, " has a key that is a ", entry.key().tagKind(),
                  "; all keys must be strings.");
    result.add(entry.key().toStringRef(), entry.value());
  }
  return result;
}

c10::IValue StateDict::to_ivalue() const {
  return make_guarded_dict({entries_.begin(), entries_.end()});
}

void StateDict::set(std::string_view key, c10::IValue value) {
  const std::size_t place = place_of(key);
  if (place < entries_.size()) {
    entries_[place].second = std::move(value);
  } else {
    add(key, std::move(value));
  }
}

void StateDict::add(std::string_view key, c10::IValue value) {
  entries_.emplace_back(std::string(key), std::move(value));
  if (!places_.empty()) {
    places_.emplace(key, entries_.size() - 1);
  } else if (entries_.size() > kMaxSearched) {
    index();
  }
}

void StateDict::index() {
  places_.clear();
  if (entries_.size() <= kMaxSearched) return;
  for (std::size_t i = 0; i < entries_.size(); ++i) places_.emplace(entries_[i].first, i);
}

void StateDict::set(std::string_view key, const std::vector<double>& values) {
  set(key, c10::IValue(list_of(values)));
}

void StateDict::erase(std::string_view key) {
  const std::size_t place = place_of(key);
  if (place == entries_.size()) return;
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(place));
  index();
}

std::size_t StateDict::place_of(std::string_view key) const {
  if (!places_.empty()) {
    const auto found = places_.find(key);
    return found == places_.end() ? entries_.size() : found->second;
  }
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [key](const Entry& entry) { return entry.first == key; });
  return static_cast<std::size_t>(found - entries_.begin());
}

const c10::IValue* StateDict::find(std::string_view key) const {
  const std::size_t place = place_of(key);
  return place == entries_.size() ? nullptr : &entries_[place].second;
}

const c10::IValue& StateDict::at(std::string_view key) const& {
  const auto* value = find(key);
  LINKBOY_CHECK(value != nullptr, "there is no ", quote_name(key),
                " in this state; it contains: ", joined_keys(entries_), ".");
  return *value;
}

#define LINKBOY_TYPED_GET(result, name, is, to, wanted)                                            \
  result StateDict::name(std::string_view key) const {                                             \
    const auto& value = at(key);                                                                   \
    LINKBOY_CHECK(value.is(), quote_name(key), " is a ", value.tagKind(), "; it must be ", wanted, \
                  ".");                                                                            \
    return value.to();                                                                             \
  }
LINKBOY_TYPED_GET(int64_t, get_int, isInt, toInt, "an integer")
LINKBOY_TYPED_GET(bool, get_bool, isBool, toBool, "a bool")
LINKBOY_TYPED_GET(std::string, get_string, isString, toStringRef, "a string")
LINKBOY_TYPED_GET(at::Tensor, get_tensor, isTensor, toTensor, "a tensor")
#undef LINKBOY_TYPED_GET

double StateDict::get_double(std::string_view key) const {
  const auto& value = at(key);
  if (value.isInt()) return static_cast<double>(value.toInt());
  LINKBOY_CHECK(value.isDouble(), quote_name(key), " is a ", value.tagKind(),
                "; it must be a number.");
  return value.toDouble();
}

c10::ArrayRef<c10::IValue> StateDict::get_list(std::string_view key) const& {
  const auto& value = at(key);
  LINKBOY_CHECK(value.isList(), quote_name(key), " is a ", value.tagKind(), "; it must be a list.");
  return value.toListRef();
}

StateDict StateDict::get_dict(std::string_view key) const {
  return from_ivalue(at(key), quote_name(key));
}

std::vector<double> StateDict::get_doubles(std::string_view key) const {
  const auto& value = at(key);
  LINKBOY_CHECK(value.isList(), quote_name(key), " is a ", value.tagKind(),
                "; it must be a list of numbers.");
  std::vector<double> result;
  for (const c10::IValue& item : value.toListRef()) {
    LINKBOY_CHECK(item.isDouble() || item.isInt(), quote_name(key), " contains a ", item.tagKind(),
                  "; it must contain numbers only.");
    result.push_back(item.isInt() ? static_cast<double>(item.toInt()) : item.toDouble());
  }
  return result;
}

}  // namespace linkboy
