#include "linkboy/metrics/mean_absolute_error.hpp"

#include <ATen/ATen.h>

#include "linkboy/metrics/regression_rows.hpp"

namespace linkboy {
namespace {

constexpr const char* kAbsoluteErrorName = "MeanAbsoluteError";

}  // namespace

MeanAbsoluteError::MeanAbsoluteError(MeanAbsoluteErrorOptions options) : options_(options) {
  check_num_outputs(options_.num_outputs, kAbsoluteErrorName);
  add_state("sum", at::zeros({options_.num_outputs}, at::kDouble), Merge::sum);
  add_state("count", at::zeros({}, at::kLong), Merge::sum);
}

void MeanAbsoluteError::update(const at::Tensor& outputs, const at::Tensor& targets) {
  const auto rows = regression_rows(outputs, targets, options_.num_outputs, kAbsoluteErrorName);
  follow(outputs);
  state(0).add_((rows.outputs - rows.targets).abs().sum(0));
  state(1).add_(rows.targets.size(0));
}

at::Tensor MeanAbsoluteError::value_of(const std::vector<at::Tensor>& states) const {
  const at::Tensor mean = states[0] / states[1];
  return options_.num_outputs == 1 ? mean.squeeze(0) : mean;
}

}  // namespace linkboy
