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

/// An ordered map from names to values: the state that models, schedulers and callbacks save and
/// restore, and the contents of a checkpoint file.
///
/// Values are LibTorch's `IValue`: a tensor, number, bool, string or None, or a list, tuple or dict
/// of these. Setting an existing name replaces its value in place. Copies share the tensors.
/// Finding or setting one of n values takes O(log n) steps. Not thread-safe.
class LINKBOY_API StateDict {
 public:
  /// A name and its value.
  using Entry = std::pair<std::string, c10::IValue>;

  StateDict() = default;
  /// Adds the entries in this order. If a name occurs twice, the last value is used.
  StateDict(std::initializer_list<Entry> entries);
  /// Creates a state that shares the tensors. Their names must differ.
  explicit StateDict(const NamedTensors& tensors);

  /// Converts a dict whose keys are all strings. `what` describes the dict in error messages.
  ///
  /// @throws Error if `value` is not a dict or has a key that is not a string.
  [[nodiscard]] static StateDict from_ivalue(const c10::IValue& value, std::string_view what);
  /// Returns the entries as a dict that shares the tensors.
  ///
  /// @throws Error if the names collide so often that LibTorch's dict would exhaust the memory.
  ///         This happens only with names from a malicious file.
  [[nodiscard]] c10::IValue to_ivalue() const;
  /// The same as `to_ivalue`, so that a state can be a value in another one.
  operator c10::IValue() const { return to_ivalue(); }  // NOLINT(google-explicit-constructor)

  /// Adds a value, or replaces the value of `key`. A list of numbers is stored as a list of
  /// doubles.
  /// @{
  void set(std::string_view key, c10::IValue value);
  void set(std::string_view key, const std::vector<double>& values);
  /// @}
  /// Removes the entry of `key`, if it exists.
  void erase(std::string_view key);

  /// Whether `key` exists.
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  /// Whether there are no entries.
  [[nodiscard]] bool empty() const { return entries_.empty(); }
  /// Number of entries.
  std::size_t size() const { return entries_.size(); }
  /// The entries, in the order in which the names were first set.
  const std::vector<Entry>& entries() const& { return entries_; }
  /// Returns the entries of a temporary state by value, so that
  /// `for (const auto& [name, value] : callback.state_dict().entries())` is safe.
  std::vector<Entry> entries() && { return std::move(entries_); }

  /// Returns the value of `key`, as an IValue or converted to the requested type.
  ///
  /// @throws Error if `key` does not exist (the message lists the existing keys) or its value is of
  ///         another type. `get_double` also accepts an integer.
  /// @{
  const c10::IValue& at(std::string_view key) const&;
  c10::IValue at(std::string_view key) && { return std::as_const(*this).at(key); }
  int64_t get_int(std::string_view key) const;
  double get_double(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  std::string get_string(std::string_view key) const;
  at::Tensor get_tensor(std::string_view key) const;
  StateDict get_dict(std::string_view key) const;
  /// The result refers to the list in this state, which must outlive the result.
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
  // Indexes of the names in `entries_`, if there are many. Sorted rather than hashed, because a
  // malicious file may contain names that have the same hash.
  std::map<std::string, std::size_t, std::less<>> places_;
};

}  // namespace linkboy
