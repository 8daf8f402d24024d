#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace linkboy {

/// Tensors with their names, in the order of the layers.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// An ordered map from names to values: what models, schedulers and callbacks save and restore,
/// and what a checkpoint file holds.
///
/// Values are LibTorch's `IValue`: tensor, number, bool, string, None, list, tuple or dict of
/// these. Setting a name again replaces its value in place. Copies share the tensors.
/// Not thread-safe.
class StateDict {
 public:
  using Entry = std::pair<std::string, c10::IValue>;

  StateDict() = default;
  StateDict(std::initializer_list<Entry> entries);
  explicit StateDict(const NamedTensors& tensors);

  /// Reads a dict whose keys are all strings. `what` names it in the error.
  ///
  /// @throws Error if `value` is no dict or has a key that is no string.
  static StateDict from_ivalue(const c10::IValue& value, std::string_view what);
  c10::IValue to_ivalue() const;

  void set(std::string_view key, c10::IValue value);
  void set(std::string_view key, const StateDict& value) { set(key, value.to_ivalue()); }
  void set(std::string_view key, const std::vector<double>& values);
  void erase(std::string_view key);

  bool contains(std::string_view key) const { return find(key) != nullptr; }
  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  const std::vector<Entry>& entries() const { return entries_; }

  /// Typed access.
  ///
  /// @throws Error if `key` is absent (the message lists the keys that exist) or its value is of
  ///         another type. `get_double` takes an integer as well.
  const c10::IValue& at(std::string_view key) const;
  int64_t get_int(std::string_view key) const;
  double get_double(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  std::string get_string(std::string_view key) const;
  at::Tensor get_tensor(std::string_view key) const;
  StateDict get_dict(std::string_view key) const;
  std::vector<double> get_doubles(std::string_view key) const;

 private:
  const c10::IValue* find(std::string_view key) const;

  std::vector<Entry> entries_;
};

}  // namespace linkboy
