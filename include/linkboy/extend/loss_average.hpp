#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "linkboy/export.hpp"
#include "linkboy/extend/async_scalar.hpp"

namespace linkboy {

/// The mean of losses, weighted by the number of samples. Adds up the losses in double precision on
/// their device, and reads the sum only when a result is requested; `update` never waits for a CUDA
/// device. Not thread-safe.
class LINKBOY_API LossAverage {
 public:
  /// @param loss  Mean loss of `batch_size` samples. If it has several elements, their mean is
  ///        used.
  void update(const at::Tensor& loss, int64_t batch_size);

  /// Removes all losses.
  void reset();

  /// Continues from `total` and `count` samples, as if they had been added here.
  void restore(double total, int64_t count);

  /// Returns the sum of loss * batch_size. Waits for a CUDA device.
  double total() const;

  /// Returns the current total without waiting for a CUDA device.
  AsyncScalar total_async() const;

  /// The number of samples.
  int64_t count() const { return count_; }

  /// Returns total() / count(), or NaN before the first update. Waits for a CUDA device.
  double average() const;

 private:
  double host_total_ = 0.0;
  at::Tensor device_total_;
  int64_t count_ = 0;
};

}  // namespace linkboy
