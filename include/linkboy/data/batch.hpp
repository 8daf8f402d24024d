#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "linkboy/checkpoint/state_dict.hpp"
#include "linkboy/export.hpp"

namespace linkboy {

/// Named values, in the order in which they were set. A value is a string, a number, a bool, a
/// tensor, or a list, tuple or dict of these.
using NamedValues = std::vector<std::pair<std::string, c10::IValue>>;

/// The data of one step: any number of named tensors whose dimension 0 counts the samples, and any
/// number of named values for other data (such as file names, or detection targets of different
/// sizes).
///
/// The first tensor is the `input()` and the second is the `target()`, regardless of their names. A
/// name belongs either to a tensor or to a value. Copies share the tensors and the values. Not
/// thread-safe.
class LINKBOY_API Batch {
 public:
  Batch() = default;
  /// Constructs a batch with one tensor, called "input".
  explicit Batch(at::Tensor input);
  /// Constructs a batch with two tensors, called "input" and "target".
  Batch(at::Tensor input, at::Tensor target);
  /// Constructs a batch with these tensors.
  /// @throws Error if a name is given twice.
  Batch(std::initializer_list<NamedTensors::value_type> tensors);
  /// Constructs a batch with these tensors.
  /// @throws Error if a name is given twice.
  explicit Batch(NamedTensors tensors);

  /// The first tensor.
  /// @throws Error if the batch is empty.
  const at::Tensor& input() const;
  /// The second tensor.
  /// @throws Error if there are fewer than two tensors.
  const at::Tensor& target() const;

  /// Returns the tensor of that name.
  /// @throws Error if there is no such tensor; the message lists the names.
  const at::Tensor& operator[](std::string_view name) const;
  /// Whether there is a tensor of that name.
  bool contains(std::string_view name) const;

  /// Adds a tensor, or replaces the tensor of that name.
  /// @throws Error if a value has that name.
  void set(std::string_view name, at::Tensor tensor);

  /// Returns the value of that name. In a batch from the default collation, it is a list with one
  /// entry per sample. For example, `value("boxes").toTensorVector()` returns boxes of different
  /// sizes.
  /// @throws Error if there is no such value; the message lists the names.
  const c10::IValue& value(std::string_view name) const;
  /// Whether there is a value of that name.
  bool contains_value(std::string_view name) const;

  /// Adds a value, or replaces the value of that name. A value may be a tensor; the default
  /// collation does not stack such tensors.
  /// @throws Error if a tensor has that name.
  void set_value(std::string_view name, c10::IValue value);

  /// Number of samples: the size of dimension 0 of the first tensor, or 1 if that is a scalar.
  /// Without tensors, the length of the first value, or 1 if that is not a list. 0 for an empty
  /// batch.
  int64_t size() const;

  /// All tensors, in order.
  const NamedTensors& tensors() const { return tensors_; }
  /// All values, in order.
  const NamedValues& values() const { return values_; }

  /// Returns the batch on `device`, including the tensors in lists, tuples and dicts of its values.
  /// Tensors and values that are already there are shared, not copied.
  /// @param non_blocking  Whether copies from pinned memory run asynchronously with respect to the
  ///        host.
  [[nodiscard]] Batch to(c10::Device device, bool non_blocking = false) const;

  /// Returns the batch in page-locked memory, from which copies to a CUDA device can overlap with
  /// other work. This includes the tensors in lists, tuples and dicts of its values.
  Batch pin_memory() const;

 private:
  NamedTensors tensors_;
  NamedValues values_;
};

}  // namespace linkboy
