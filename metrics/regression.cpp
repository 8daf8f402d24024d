// Converts outputs and targets of a regression to rows in double precision, and averages an error.
// R2Score merges counts, means and squared deviations of batches.

#include "linkboy/metrics/regression.hpp"

#include <ATen/ATen.h>

#include <limits>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

/// A batch in the layout that the metrics accumulate: [rows, num_outputs].
struct RegressionRows {
  at::Tensor outputs;
  at::Tensor targets;
};

at::Tensor rows(const at::Tensor& tensor, int64_t num_outputs) {
  return tensor.detach().to(at::kDouble).reshape({-1, num_outputs});
}

/// Returns the outputs and targets as rows, in double precision and without gradients. If
/// `num_outputs` is 1, accepts tensors of any shape, and each element is a row. Otherwise accepts
/// [N, num_outputs].
RegressionRows regression_rows(const at::Tensor& outputs, const at::Tensor& targets,
                               int64_t num_outputs, const char* metric) {
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

void check_num_outputs(int64_t num_outputs, const char* metric) {
  LINKBOY_CHECK_OPTION(num_outputs >= 1, metric, ": num_outputs is ", num_outputs,
                       "; it must be at least 1.");
}

constexpr const char* kR2ScoreName = "R2Score";

// Rows of the state of R2Score.
constexpr int64_t kCount = 0;
constexpr int64_t kMean = 1;
constexpr int64_t kSquares = 2;
constexpr int64_t kResidualSquares = 3;

/// Combines counts, means, sums of squared distances from the mean, and sums of squared residuals.
/// The difference of two sums of squares would be less exact: it loses all digits if the targets
/// are large and similar.
/// @param parts  [parts, 4, num_outputs], with at least one part.
/// @return [1, 4, num_outputs].
at::Tensor combined(const at::Tensor& parts) {
  const at::Tensor counts = parts.select(1, kCount);
  const at::Tensor means = parts.select(1, kMean);
  const at::Tensor count = counts.sum(0);
  // Relative to the first mean, so that the mean of equal targets is exact.
  const at::Tensor mean = means[0] + (counts * (means - means[0])).sum(0) / count;
  const at::Tensor squares = parts.select(1, kSquares) + counts * (means - mean).square();
  return at::stack({count, mean, squares.sum(0), parts.select(1, kResidualSquares).sum(0)})
      .unsqueeze(0);
}

}  // namespace

MeanErrorMetric::MeanErrorMetric(const char* name, int64_t num_outputs,
                                 at::Tensor (*error)(const at::Tensor&), bool has_root)
    : name_(name), num_outputs_(num_outputs), error_(error), has_root_(has_root) {
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
  at::Tensor mean = states[0] / states[1];
  if (has_root_) mean = mean.sqrt();
  return num_outputs_ == 1 ? mean.squeeze(0) : mean;
}

MeanAbsoluteError::MeanAbsoluteError(MeanAbsoluteErrorOptions options)
    : MeanErrorMetric("MeanAbsoluteError", options.num_outputs, at::abs) {}

MeanSquaredError::MeanSquaredError(MeanSquaredErrorOptions options)
    : MeanErrorMetric("MeanSquaredError", options.num_outputs, at::square,
                      /*has_root=*/!options.squared) {}

R2Score::R2Score(R2ScoreOptions options) : options_(options) {
  check_num_outputs(options_.num_outputs, kR2ScoreName);
  LINKBOY_CHECK_OPTION(options_.adjusted >= 0, kR2ScoreName, ": adjusted is ", options_.adjusted,
                       "; it must not be negative.");
  add_state("moments", at::empty({0, 4, options_.num_outputs}, at::kDouble), Merge::concatenate);
}

void R2Score::update(const at::Tensor& outputs, const at::Tensor& targets) {
  const auto rows = regression_rows(outputs, targets, options_.num_outputs, kR2ScoreName);
  LINKBOY_CHECK(outputs.dim() >= 1 && outputs.size(0) == rows.outputs.size(0), kR2ScoreName,
                ": outputs and targets are ", outputs.sizes(), ", but num_outputs is ",
                options_.num_outputs, "; they must be [N] or [N, 1].");
  if (rows.targets.size(0) == 0) return;
  const at::Tensor samples =
      at::stack({at::ones_like(rows.targets), rows.targets, at::zeros_like(rows.targets),
                 (rows.targets - rows.outputs).square()},
                1);
  const at::Tensor before = state(0).to(samples.device(), /*non_blocking=*/true);
  state(0) = combined(at::cat({before, samples}));
}

at::Tensor R2Score::averaged(const at::Tensor& scores, const at::Tensor& squares) const {
  switch (options_.average) {
    case R2Average::uniform:
      return scores.mean();
    case R2Average::variance_weighted: {
      const at::Tensor total = squares.sum();
      return at::where(total == 0.0, scores.mean(), (squares / total * scores).sum());
    }
    case R2Average::none:
      break;
  }
  return options_.num_outputs == 1 ? scores.squeeze(0) : scores;
}

at::Tensor R2Score::value_of(const std::vector<at::Tensor>& states) const {
  const at::Tensor nan =
      at::full({options_.num_outputs}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  if (states[0].size(0) == 0) return averaged(nan, nan);
  const at::Tensor moments = combined(states[0])[0];
  const auto count = static_cast<int64_t>(moments[kCount][0].item<double>());
  if (count < 2) return averaged(nan, nan);
  const at::Tensor squares = moments[kSquares];
  const at::Tensor residual_squares = moments[kResidualSquares];
  const at::Tensor scores =
      at::where(residual_squares == 0.0, 1.0,
                at::where(squares == 0.0, 0.0, 1.0 - residual_squares / squares));
  at::Tensor score = averaged(scores, squares);
  if (options_.adjusted == 0 || options_.adjusted >= count - 1) return score;
  const auto degrees_of_freedom = static_cast<double>(count - options_.adjusted - 1);
  return 1.0 - (1.0 - score) * static_cast<double>(count - 1) / degrees_of_freedom;
}

}  // namespace linkboy
