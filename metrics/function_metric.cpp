// Averages the values that a custom function returns for each batch.

#include "linkboy/metrics/function_metric.hpp"

#include "linkboy/error.hpp"

namespace linkboy {

FunctionMetric::FunctionMetric(Function function) : function_(std::move(function)) {
  LINKBOY_CHECK_OPTION(function_, "the function of the FunctionMetric is empty; pass a function.");
}

void FunctionMetric::update(const at::Tensor& outputs, const at::Tensor& targets) {
  MeanMetric::update(function_(outputs, targets), at::Tensor());
}

}  // namespace linkboy
