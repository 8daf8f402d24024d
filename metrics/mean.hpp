#pragma once

#include <functional>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metric.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

struct MeanMetricOptions {
  /// If true, skips values that are NaN or whose weight is NaN. If false, such a value makes the
  /// mean NaN.
  bool ignore_nan = false;
};

/// The weighted mean of values, such as losses: the sum of value * weight, divided by the sum of
/// the weights.
///
/// The value is NaN if both sums are zero, for example before the first value.
class LINKBOY_API MeanMetric : public Metric {
 public:
  /// The options type for `make<MeanMetric>({...})`.
  using Options = MeanMetricOptions;

  /// Creates a metric with these options.
  explicit MeanMetric(MeanMetricOptions options = {});

  /// Adds values.
  /// @param values   Any shape.
  /// @param weights  Broadcast to the values. If undefined, every weight is 1.
  /// @throws Error if the weights cannot be broadcast to the values, or if a dtype is complex.
  void update(const at::Tensor& values, const at::Tensor& weights) override;
  /// Adds values that all have the weight 1.
  void update(const at::Tensor& values) { update(values, at::Tensor()); }

 protected:
  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  MeanMetricOptions options_;
};
/// Makes a MeanMetric.
inline constexpr Maker<MeanMetric> mean_metric{};

/// The mean of the values that a function returns for each batch: either one value per sample, [N],
/// or one scalar, which counts as a single value.
///
///     auto is_close = [](const at::Tensor& output, const at::Tensor& target) {
///       return (output - target).abs().lt(0.1).squeeze(1);
///     };
///     linkboy::function_metric(is_close)
class LINKBOY_API FunctionMetric : public MeanMetric {
 public:
  /// A function of the outputs and the targets of a batch.
  using Function = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

  /// @throws OptionError if `function` is empty.
  explicit FunctionMetric(Function function);

  /// Adds the values of `function(outputs, targets)`.
  /// @throws Error if a dtype is complex; any error of the function.
  void update(const at::Tensor& outputs, const at::Tensor& targets) override;

 private:
  Function function_;
};
/// Makes a FunctionMetric.
inline constexpr Maker<FunctionMetric> function_metric{};

}  // namespace linkboy
