#include "linkboy/metrics/mean_squared_error.hpp"

#include <ATen/ATen.h>

#include "linkboy/metrics/regression_rows.hpp"

namespace linkboy {
namespace {

constexpr const char* kSquaredErrorName = "MeanSquaredError";

}  // namespace

MeanSquaredError::MeanSquaredError(MeanSquaredErrorOptions options) : options_(options) {
  check_num_outputs(options_.num_outputs, kSquaredErrorName);
  add_state("sum", at::zeros({options_.num_outputs}, at::kDouble), Merge::sum);
  add_state("count", at::zeros({}, at::kLong), Merge::sum);
}

void MeanSquaredError::update(const at::Tensor& outputs, const at::Tensor& targets) {
  const auto rows = regression_rows(outputs, targets, options_.num_outputs, kSquaredErrorName);
  follow(outputs);
  state(0).add_((rows.outputs - rows.targets).square().sum(0));
  state(1).add_(rows.targets.size(0));
}

at::Tensor MeanSquaredError::value_of(const std::vector<at::Tensor>& states) const {
  at::Tensor mean = states[0] / states[1];
  if (!options_.squared) mean = mean.sqrt();
  return options_.num_outputs == 1 ? mean.squeeze(0) : mean;
}

}  // namespace linkboy
