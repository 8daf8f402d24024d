#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>

#include "linkboy/export.hpp"

namespace linkboy {

/// A number that is being copied from a device to the host. The constructor queues the copy into
/// page-locked memory and does not wait for it; only `value` waits. The number of a CPU tensor is
/// available immediately.
///
/// Not thread-safe.
class LINKBOY_API AsyncScalar {
 public:
  /// @param scalar  One element of any dtype.
  explicit AsyncScalar(const at::Tensor& scalar);

  /// Stores a number that is already on the host.
  explicit AsyncScalar(double value) : value_(value) {}

  /// Whether `value` returns without waiting.
  bool is_ready() const;

  /// Returns the number. Waits for the copy, but not for work that was queued after it.
  double value() const;

 private:
  double value_ = 0.0;
  at::Tensor on_host_;                   // undefined if `value_` holds the number
  std::shared_ptr<c10::Event> arrival_;  // recorded after the copy to `on_host_`
};

}  // namespace linkboy
