#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linkboy/export.hpp"

namespace linkboy {

/// Tensors with their names, in the order of the layers.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// An ordered map from names to values: what models, schedulers and callbacks save and restore,
/// and what a checkpoint file holds.
///
/// Values are LibTorch's `IValue`: tensor, number, bool, string, None, list, tuple or dict of
/// these. Setting a name again replaces its value in place. Copies share the tensors. Finding and
/// setting a value among n takes O(log n) steps.
/// Not thread-safe.
class LINKBOY_API StateDict {
 public:
  /// A name and its value.
  using Entry = std::pair<std::string, c10::IValue>;

  StateDict() = default;
  /// In that order; of a name that is given twice the last value counts.
  StateDict(std::initializer_list<Entry> entries);
  /// Shares the tensors, whose names must differ.
  explicit StateDict(const NamedTensors& tensors);

  /// Reads a dict whose keys are all strings. `what` names it in the error.
  ///
  /// @throws Error if `value` is no dict or has a key that is no string.
  static StateDict from_ivalue(const c10::IValue& value, std::string_view what);
  /// A dict of the entries, which shares the tensors.
  ///
  /// @throws Error if the names were chosen to exhaust the memory of LibTorch's dict, which only
  ///         names from a hostile file are.
  c10::IValue to_ivalue() const;

  /// Adds a value, or replaces the one of that name. A list of numbers stands as a list of doubles.
  /// @{
  void set(std::string_view key, c10::IValue value);
  void set(std::string_view key, const StateDict& value) { set(key, value.to_ivalue()); }
  void set(std::string_view key, const std::vector<double>& values);
  /// @}
  /// Does nothing if there is no such name.
  void erase(std::string_view key);

  /// Whether there is such a name.
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  /// Whether there are no entries.
  bool empty() const { return entries_.empty(); }
  /// How many entries there are.
  std::size_t size() const { return entries_.size(); }
  /// In the order in which the names were first set.
  const std::vector<Entry>& entries() const& { return entries_; }
  /// Those of a temporary outlive it, in a
  /// `for (const auto& [name, value] : callback.state_dict().entries())`, too.
  std::vector<Entry> entries() && { return std::move(entries_); }

  /// The value of `key`, as what it is or as the type that is asked for.
  ///
  /// @throws Error if `key` is absent (the message lists the keys that exist) or its value is of
  ///         another type. `get_double` takes an integer as well.
  /// @{
  const c10::IValue& at(std::string_view key) const&;
  c10::IValue at(std::string_view key) && { return std::as_const(*this).at(key); }
  int64_t get_int(std::string_view key) const;
  double get_double(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  std::string get_string(std::string_view key) const;
  at::Tensor get_tensor(std::string_view key) const;
  StateDict get_dict(std::string_view key) const;
  /// Refers to the list in this state, which must be kept meanwhile.
  c10::ArrayRef<c10::IValue> get_list(std::string_view key) const&;
  c10::ArrayRef<c10::IValue> get_list(std::string_view key) && = delete;
  std::vector<double> get_doubles(std::string_view key) const;
  /// @}

 private:
  const c10::IValue* find(std::string_view key) const;
  std::size_t place_of(std::string_view key) const;
  void add(std::string_view key, c10::IValue value);
  void index();

  std::vector<Entry> entries_;
  // Of the names, once there are many. Sorted, since a file may have chosen names of one hash.
  std::map<std::string, std::size_t, std::less<>> places_;
};

}  // namespace linkboy
