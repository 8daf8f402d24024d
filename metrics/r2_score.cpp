#include "linkboy/metrics/r2_score.hpp"

#include <ATen/ATen.h>

#include "linkboy/error.hpp"
#include "linkboy/metrics/regression_rows.hpp"

namespace linkboy {
namespace {

constexpr const char* kR2ScoreName = "R2Score";

/// The threshold in torchmetrics. A sum of squares up to this value counts as a rounding error.
constexpr double kZeroTolerance = 1e-4;

}  // namespace

R2Score::R2Score(R2ScoreOptions options) : options_(options) {
  check_num_outputs(options_.num_outputs, kR2ScoreName);
  LINKBOY_CHECK_OPTION(options_.adjusted >= 0, kR2ScoreName, ": adjusted is ", options_.adjusted,
                       "; it must not be negative.");
  const auto zeros = [&] { return at::zeros({options_.num_outputs}, at::kDouble); };
  add_state("sum", zeros(), Merge::sum);
  add_state("sum_of_squares", zeros(), Merge::sum);
  add_state("residual_squares", zeros(), Merge::sum);
  add_state("count", at::zeros({}, at::kLong), Merge::sum);
}

void R2Score::update(const at::Tensor& outputs, const at::Tensor& targets) {
  const auto rows = regression_rows(outputs, targets, options_.num_outputs, kR2ScoreName);
  LINKBOY_CHECK(outputs.dim() >= 1 && outputs.size(0) == rows.outputs.size(0), kR2ScoreName,
                ": outputs and targets are ", outputs.sizes(), ", but num_outputs is ",
                options_.num_outputs, "; they must be [N] or [N, 1].");
  follow(outputs);
  state(0).add_(rows.targets.sum(0));
  state(1).add_(rows.targets.square().sum(0));
  state(2).add_((rows.targets - rows.outputs).square().sum(0));
  state(3).add_(outputs.size(0));
}

at::Tensor R2Score::averaged(const at::Tensor& scores, const at::Tensor& total_squares) const {
  switch (options_.average) {
    case R2Average::uniform:
      return scores.mean();
    case R2Average::variance_weighted:
      return (total_squares / total_squares.sum() * scores).sum();
    case R2Average::none:
      break;
  }
  return options_.num_outputs == 1 ? scores.squeeze(0) : scores;
}

at::Tensor R2Score::value_of(const std::vector<at::Tensor>& states) const {
  const auto& sum = states[0];
  const auto& residual_squares = states[2];
  const auto count = states[3].item<int64_t>();
  LINKBOY_CHECK(count >= 2, kR2ScoreName, ": it has seen ", count,
                " samples; R2 needs at least 2. Call update with more samples before compute.");
  const at::Tensor total_squares = states[1] - sum * (sum / count);
  const at::Tensor is_exact = residual_squares.abs() <= kZeroTolerance;
  const at::Tensor is_constant = total_squares.abs() <= kZeroTolerance;
  const at::Tensor scores =
      at::where(is_exact, 1.0, at::where(is_constant, 0.0, 1.0 - residual_squares / total_squares));
  at::Tensor score = averaged(scores, total_squares);
  if (options_.adjusted == 0 || options_.adjusted >= count - 1) return score;
  const auto degrees_of_freedom = static_cast<double>(count - options_.adjusted - 1);
  return 1.0 - (1.0 - score) * static_cast<double>(count - 1) / degrees_of_freedom;
}

}  // namespace linkboy
