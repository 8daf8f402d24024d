#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "linkboy/export.hpp"
#include "linkboy/extend/async_scalar.hpp"

namespace linkboy {

/// The sample-weighted mean of losses. Adds up in double precision on the device that the losses
/// live on, and reads nothing back until it is asked: `update` never waits for a CUDA device.
/// Not thread-safe.
class LINKBOY_API LossAverage {
 public:
  /// @param loss  Mean over `batch_size` samples; a loss of several elements counts as their mean.
  void update(const at::Tensor& loss, int64_t batch_size);

  /// Forgets all losses.
  void reset();

  /// Continues from `total` and `count` samples, as if they had been added here.
  void restore(double total, int64_t count);

  /// Sum of loss * batch_size. Waits for a CUDA device.
  double total() const;

  /// The total so far, for whoever does not want to wait.
  AsyncScalar total_async() const;

  /// Number of samples.
  int64_t count() const { return count_; }

  /// total() / count(), or NaN before the first update. Waits for a CUDA device.
  double average() const;

 private:
  double host_total_ = 0.0;
  at::Tensor device_total_;
  int64_t count_ = 0;
};

}  // namespace linkboy
