// The data of AUROC and average precision: all scores or, with fixed thresholds, only counts.

#include "linkboy/metrics/ranking_curve_metric.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "linkboy/error.hpp"

namespace linkboy {
namespace {

// States of the exact metric.
constexpr std::size_t kScores = 0;
constexpr std::size_t kTargets = 1;
// State of the binned metric.
constexpr std::size_t kCounts = 0;

constexpr std::size_t kTargetRule = 0;
constexpr std::size_t kScoreRule = 1;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Converts the scores to at least float. In half precision, confident logits would become ties.
at::Tensor to_float(const at::Tensor& scores) {
  return scores.to(at::promote_types(scores.scalar_type(), at::kFloat));
}

}  // namespace

RankingCurveMetric::RankingCurveMetric(std::string name, RankingCurveOptions options)
    : name_(std::move(name)), options_(options) {
  LINKBOY_CHECK_OPTION(!options_.num_classes || *options_.num_classes >= 2, name_,
                       ": num_classes is ", *options_.num_classes,
                       "; it must be at least 2. Leave it out for targets that are 0 or 1.");
  LINKBOY_CHECK_OPTION(!options_.thresholds || *options_.thresholds >= 2, name_, ": thresholds is ",
                       *options_.thresholds,
                       "; it must be at least 2. Leave it out for the exact value.");
  if (is_exact()) {
    // Every floating-point dtype fits into double, and the dtype must be the same on all processes.
    const auto scores = options_.num_classes ? at::empty({0, *options_.num_classes}, at::kDouble)
                                             : at::empty({0}, at::kDouble);
    add_state("scores", scores, Merge::concatenate);
    add_state("targets", at::empty({0}, at::kLong), Merge::concatenate);
  } else {
    // In float, like most scores: 0.7 in float is less than 0.7 in double.
    thresholds_ = at::linspace(0.0, 1.0, *options_.thresholds, at::kFloat);
    add_state("counts", at::zeros({2, num_columns(), *options_.thresholds + 1}, at::kLong),
              Merge::sum);
  }
  add_rule(options_.num_classes
               ? c10::str(name_, ": targets must lie in [0, ", *options_.num_classes - 1, "].")
               : c10::str(name_, ": targets must be 0 or 1."));
  add_rule(is_exact() ? c10::str(name_, ": scores must not be NaN.")
                      : c10::str(name_,
                                 ": with thresholds, scores must lie in [0, 1]; set "
                                 "from_logits if they are logits."));
}

void RankingCurveMetric::check_shapes(const at::Tensor& outputs, const at::Tensor& targets) const {
  LINKBOY_CHECK(outputs.defined() && targets.defined(), name_,
                ": the outputs or the targets are undefined; pass two tensors.");
  LINKBOY_CHECK(outputs.is_floating_point(), name_, ": the outputs are ", outputs.scalar_type(),
                "; they must be floating-point scores.");
  LINKBOY_CHECK(at::isIntegralType(targets.scalar_type(), /*includeBool=*/true), name_,
                ": the targets are ", targets.scalar_type(), "; they must be integers or bool.");
  LINKBOY_CHECK(outputs.device() == targets.device(), name_, ": the outputs are on ",
                outputs.device(), ", but the targets are on ", targets.device(),
                "; they must be on the same device.");
  if (!options_.num_classes) {
    const bool is_column = outputs.dim() > 1 && outputs.squeeze(1).sizes() == targets.sizes();
    LINKBOY_CHECK(is_column || outputs.sizes() == targets.sizes(), name_, ": the outputs are ",
                  outputs.sizes(), ", but the targets are ", targets.sizes(),
                  "; they must have the same shape, or the outputs an additional dimension 1 of "
                  "size 1. For scores of several classes, set num_classes.");
    return;
  }
  std::vector<int64_t> expected = targets.sizes().vec();
  if (!expected.empty()) expected.insert(expected.begin() + 1, *options_.num_classes);
  LINKBOY_CHECK(targets.dim() >= 1 && outputs.sizes() == expected, name_, ": the outputs are ",
                outputs.sizes(), " and the targets ", targets.sizes(), ", but num_classes is ",
                *options_.num_classes, "; they must be [N, ", *options_.num_classes,
                ", ...] and [N, ...].");
}

/// Returns the scores as [N, C], or as [N] if `num_classes` is not set.
at::Tensor RankingCurveMetric::scores_of(const at::Tensor& outputs) const {
  const at::Tensor scores = outputs.detach();
  if (!options_.num_classes) {
    return (options_.from_logits ? to_float(scores).sigmoid() : scores).reshape(-1);
  }
  return (options_.from_logits ? to_float(scores).softmax(1) : scores)
      .movedim(1, -1)
      .reshape({-1, *options_.num_classes});
}

void RankingCurveMetric::update(const at::Tensor& outputs, const at::Tensor& targets) {
  check_shapes(outputs, targets);
  const at::Tensor scores = scores_of(outputs);
  const at::Tensor labels = targets.to(at::kLong).reshape(-1);
  follow(outputs);
  check_values(kTargetRule, labels,
               labels.lt(0).logical_or(labels.ge(options_.num_classes.value_or(2))));
  const at::Tensor is_wrong =
      is_exact() ? scores.isnan() : scores.ge(0.0).logical_and(scores.le(1.0)).logical_not();
  check_values(kScoreRule, scores, is_wrong);
  if (is_exact()) {
    append(kScores, scores);
    append(kTargets, labels);
  } else {
    count(scores.reshape({-1, num_columns()}), labels);
  }
}

/// Counts the samples by the number of thresholds that their scores reach.
/// @param scores   [N, columns].
/// @param targets  [N].
void RankingCurveMetric::count(const at::Tensor& scores, const at::Tensor& targets) {
  const auto dtype = at::promote_types(scores.scalar_type(), at::kFloat);
  thresholds_ = thresholds_.to(scores.device(), at::kFloat, /*non_blocking=*/true);
  const at::Tensor num_reached = at::bucketize(scores.to(dtype).contiguous(), thresholds_.to(dtype),
                                               /*out_int32=*/false, /*right=*/true);
  const at::Tensor columns = at::arange(num_columns(), targets.options());
  const at::Tensor positive_column = options_.num_classes ? columns : at::ones_like(columns);
  const at::Tensor is_positive = targets.unsqueeze(1).eq(positive_column).to(at::kLong);
  const at::Tensor cells =
      (is_positive * num_columns() + columns) * (*options_.thresholds + 1) + num_reached;
  const at::Tensor flat = cells.reshape(-1);
  state(kCounts).view(-1).scatter_add_(0, flat, at::ones_like(flat));
}

std::vector<RankingCurve> RankingCurveMetric::curves_of(
    const std::vector<at::Tensor>& states) const {
  std::vector<RankingCurve> curves;
  for (int64_t column = 0; column < num_columns(); ++column) {
    if (!is_exact()) {
      curves.push_back(binned_ranking_curve(states[kCounts].select(1, column)));
      continue;
    }
    const auto& scores = states[kScores];
    curves.push_back(
        exact_ranking_curve(options_.num_classes ? scores.select(1, column) : scores,
                            states[kTargets].eq(options_.num_classes ? column : int64_t{1})));
  }
  return curves;
}

double RankingCurveMetric::averaged(const std::vector<double>& values,
                                    const std::vector<RankingCurve>& curves) const {
  const bool is_weighted = options_.average == RankingAverage::weighted;
  double sum = 0.0;
  double total_weight = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) continue;
    const double weight = is_weighted ? static_cast<double>(curves[i].num_positives) : 1.0;
    sum += weight * values[i];
    total_weight += weight;
  }
  return sum / total_weight;
}

at::Tensor RankingCurveMetric::value_of(const std::vector<at::Tensor>& states) const {
  const auto curves = curves_of(states);
  const bool has_samples = curves[0].num_positives + curves[0].num_negatives > 0;
  const auto values = has_samples ? values_of(curves) : std::vector<double>(curves.size(), kNaN);
  if (options_.average == RankingAverage::none && options_.num_classes) {
    return at::tensor(values, at::kDouble);
  }
  return at::scalar_tensor(options_.num_classes ? averaged(values, curves) : values[0],
                           at::kDouble);
}

}  // namespace linkboy
