#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>

#include "linkboy/export.hpp"

namespace linkboy {

/// A number on its way from a device to the host. The copy is queued behind the work so far, into
/// page-locked memory, and nobody waits before the number is wanted. One of the CPU is there at
/// once.
///
/// Used by one thread.
class LINKBOY_API AsyncScalar {
 public:
  /// @param scalar  One element of any dtype.
  explicit AsyncScalar(const at::Tensor& scalar);

  /// One that is there already.
  explicit AsyncScalar(double value) : value_(value) {}

  /// Without waiting.
  bool is_ready() const;

  /// Waits for the copy, and for no later work.
  double value() const;

 private:
  double value_ = 0.0;
  at::Tensor on_host_;                   // undefined if `value_` is it
  std::shared_ptr<c10::Event> arrival_;  // of `on_host_`
};

}  // namespace linkboy
