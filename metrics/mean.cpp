// Accumulates the weighted sum of the values and the sum of the weights in double precision.

#include "linkboy/metrics/mean.hpp"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "linkboy/error.hpp"

namespace linkboy {

MeanMetric::MeanMetric(MeanMetricOptions options) : options_(options) {
  add_state("sum", at::zeros({}, at::kDouble), Merge::sum);
  add_state("weight", at::zeros({}, at::kDouble), Merge::sum);
}

void MeanMetric::update(const at::Tensor& values, const at::Tensor& weights) {
  LINKBOY_CHECK(values.defined(), "MeanMetric: the values are undefined; pass a tensor.");
  LINKBOY_CHECK(!values.is_complex(), "MeanMetric: the values are ", values.scalar_type(),
                "; they must be real numbers.");
  at::Tensor terms = values.detach().to(at::kDouble);
  at::Tensor factors = at::ones_like(terms);
  if (weights.defined()) {
    LINKBOY_CHECK(!weights.is_complex(), "MeanMetric: the weights are ", weights.scalar_type(),
                  "; they must be real numbers.");
    LINKBOY_CHECK(at::is_expandable_to(weights.sizes(), values.sizes()),
                  "MeanMetric: the weights are ", weights.sizes(), ", but the values are ",
                  values.sizes(), "; the weights must broadcast to the values.");
    factors = weights.detach().to(terms.options()).expand_as(terms);
  }
  if (options_.ignore_nan) {
    const at::Tensor is_nan = terms.isnan().logical_or(factors.isnan());
    terms = terms.masked_fill(is_nan, 0.0);
    factors = factors.masked_fill(is_nan, 0.0);
  }
  follow(values);
  state(0).add_((terms * factors).sum());
  state(1).add_(factors.sum());
}

at::Tensor MeanMetric::value_of(const std::vector<at::Tensor>& states) const {
  return states[0] / states[1];
}

FunctionMetric::FunctionMetric(Function function) : function_(std::move(function)) {
  LINKBOY_CHECK_OPTION(function_, "the function of the FunctionMetric is empty; pass a function.");
}

void FunctionMetric::update(const at::Tensor& outputs, const at::Tensor& targets) {
  MeanMetric::update(function_(outputs, targets), at::Tensor());
}

}  // namespace linkboy
