#pragma once

#include <functional>

#include "linkboy/export.hpp"
#include "linkboy/metrics/mean.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// The mean of the values that a function returns for each batch: either one value per sample, [N],
/// or one scalar, which counts as a single value.
///
///     auto is_close = [](const at::Tensor& output, const at::Tensor& target) {
///       return (output - target).abs().lt(0.1).squeeze(1);
///     };
///     linkboy::make<linkboy::FunctionMetric>(is_close)
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
