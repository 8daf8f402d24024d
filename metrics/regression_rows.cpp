// Converts outputs and targets of a regression to rows in double precision, and averages an error.

#include "linkboy/metrics/regression_rows.hpp"

#include <ATen/ATen.h>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

at::Tensor rows(const at::Tensor& tensor, int64_t num_outputs) {
  return tensor.detach().to(at::kDouble).reshape({-1, num_outputs});
}

}  // namespace

RegressionRows regression_rows(const at::Tensor& outputs, const at::Tensor& targets,
                               int64_t num_outputs, std::string_view metric) {
  LINKBOY_CHECK(outputs.defined() && targets.defined(), metric,
                ": the outputs or the targets are undefined; pass two tensors of the same shape.");
  LINKBOY_CHECK(outputs.sizes() == targets.sizes(), metric, ": the outputs are ", outputs.sizes(),
                ", but the targets are ", targets.sizes(),
                "; they must have the same shape. Reshape one of them (squeeze(1) turns "
                "[N, 1] into [N]).");
  LINKBOY_CHECK(!outputs.is_complex() && !targets.is_complex(), metric, ": the outputs are ",
                outputs.scalar_type(), " and the targets ", targets.scalar_type(),
                "; both must be real numbers.");
  LINKBOY_CHECK(num_outputs == 1 || (outputs.dim() == 2 && outputs.size(1) == num_outputs), metric,
                ": outputs and targets are ", outputs.sizes(), ", but num_outputs is ", num_outputs,
                "; they must be [N, ", num_outputs, "].");
  return {.outputs = rows(outputs, num_outputs), .targets = rows(targets, num_outputs)};
}

void check_num_outputs(int64_t num_outputs, std::string_view metric) {
  LINKBOY_CHECK_OPTION(num_outputs >= 1, metric, ": num_outputs is ", num_outputs,
                       "; it must be at least 1.");
}

MeanErrorMetric::MeanErrorMetric(const char* name, int64_t num_outputs,
                                 at::Tensor (*error)(const at::Tensor&))
    : name_(name), num_outputs_(num_outputs), error_(error) {
  check_num_outputs(num_outputs_, name_);
  add_state("sum", at::zeros({num_outputs_}, at::kDouble), Merge::sum);
  add_state("count", at::zeros({}, at::kLong), Merge::sum);
}

void MeanErrorMetric::update(const at::Tensor& outputs, const at::Tensor& targets) {
  const auto rows = regression_rows(outputs, targets, num_outputs_, name_);
  follow(outputs);
  state(0).add_(error_(rows.outputs - rows.targets).sum(0));
  state(1).add_(rows.targets.size(0));
}

at::Tensor MeanErrorMetric::value_of(const std::vector<at::Tensor>& states) const {
  const at::Tensor mean = states[0] / states[1];
  return num_outputs_ == 1 ? mean.squeeze(0) : mean;
}

}  // namespace linkboy
