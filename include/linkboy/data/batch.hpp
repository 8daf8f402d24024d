#pragma once

#include <ATen/core/Tensor.h>
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

/// What one step is fed: any number of named tensors whose dimension 0 counts the samples.
///
/// The first tensor is the `input()`, the second the `target()`; a batch of other things names
/// them as it likes. Copies share the tensors. Not thread-safe.
class LINKBOY_API Batch {
 public:
  Batch() = default;
  /// One tensor, called "input".
  explicit Batch(at::Tensor input);
  /// Two tensors, called "input" and "target".
  Batch(at::Tensor input, at::Tensor target);
  /// @throws Error if a name is given twice.
  Batch(std::initializer_list<NamedTensors::value_type> tensors);
  /// @throws Error if a name is given twice.
  explicit Batch(NamedTensors tensors);

  /// The first tensor.
  /// @throws Error if the batch is empty.
  const at::Tensor& input() const;
  /// The second tensor.
  /// @throws Error if there is none.
  const at::Tensor& target() const;

  /// @throws Error if there is no such tensor; the message lists the names.
  const at::Tensor& operator[](std::string_view name) const;
  /// Whether there is a tensor of that name.
  bool contains(std::string_view name) const;

  /// Adds a tensor, or replaces the one of that name.
  void set(std::string_view name, at::Tensor tensor);

  /// Number of samples: dimension 0 of the first tensor; 0 for an empty batch, 1 if the first
  /// tensor is a scalar.
  int64_t size() const;

  /// All of them, in order.
  const NamedTensors& tensors() const { return tensors_; }

  /// The batch on `device`; tensors that are there already are shared, not copied.
  /// @param non_blocking  Lets copies from pinned memory run beside the host.
  Batch to(c10::Device device, bool non_blocking = false) const;

  /// The batch in page-locked memory, from which copies to a CUDA device overlap with work.
  Batch pin_memory() const;

 private:
  NamedTensors tensors_;
};

}  // namespace linkboy
