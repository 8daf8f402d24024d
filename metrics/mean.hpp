#pragma once

#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/metric.hpp"

namespace linkboy {

struct MeanMetricOptions {
  /// Leaves out values that are NaN or have a weight that is NaN. Otherwise the mean is NaN then.
  bool ignore_nan = false;
};

/// The weighted mean of values, such as losses: sum of value * weight / sum of weights.
///
/// NaN while the weights add up to zero and so do the values.
class LINKBOY_API MeanMetric : public Metric {
 public:
  /// What `make<MeanMetric>({...})` takes.
  using Options = MeanMetricOptions;

  /// See the options.
  explicit MeanMetric(MeanMetricOptions options = {});

  /// @param values   Of any shape.
  /// @param weights  Broadcast to the values; undefined for 1 each.
  /// @throws Error if the weights cannot be broadcast to the values, or a dtype is complex.
  void update(const at::Tensor& values, const at::Tensor& weights) override;
  /// All with the weight 1.
  void update(const at::Tensor& values) { update(values, at::Tensor()); }

 protected:
  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  MeanMetricOptions options_;
};

}  // namespace linkboy
