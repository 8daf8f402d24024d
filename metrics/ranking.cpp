// AUROC and average precision keep all scores or, with fixed thresholds, only counts. Both are
// areas under a curve of the true and false positives.

#include "linkboy/metrics/ranking.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <cstddef>
#include <limits>

#include "linkboy/error.hpp"

namespace linkboy {

/// The numbers of positive and negative samples whose score reaches a threshold, for thresholds
/// from high to low. The ROC curve and the precision-recall curve are computed from them.
struct RankingCurve {
  at::Tensor true_positives;   ///< int64 [thresholds]
  at::Tensor false_positives;  ///< int64 [thresholds]
  int64_t num_positives = 0;   ///< all positive samples
  int64_t num_negatives = 0;   ///< all negative samples
};

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

/// Returns 0, followed by the running sums of `flags` at the positions where `is_end` is true.
at::Tensor sums_at(const at::Tensor& is_end, const at::Tensor& flags) {
  const at::Tensor sums = flags.to(at::kLong).cumsum(0).masked_select(is_end);
  return at::cat({at::zeros({1}, at::kLong), sums});
}

/// Returns the curve for a threshold above all scores, followed by each distinct score in
/// descending order. Samples with equal scores form one point, so their order does not matter.
/// @param scores       [N], on the CPU.
/// @param is_positive  Bool [N].
RankingCurve exact_ranking_curve(const at::Tensor& scores, const at::Tensor& is_positive) {
  const auto [sorted, order] = scores.sort(/*dim=*/0, /*descending=*/true);
  const at::Tensor flags = is_positive.index_select(0, order);
  at::Tensor is_end = at::ones_like(flags);  // true for the last of equal scores
  if (sorted.size(0) > 1) {
    is_end.slice(0, 0, -1).copy_(sorted.slice(0, 1).ne(sorted.slice(0, 0, -1)));
  }
  const auto num_positives = is_positive.sum().item<int64_t>();
  return {.true_positives = sums_at(is_end, flags),
          .false_positives = sums_at(is_end, flags.logical_not()),
          .num_positives = num_positives,
          .num_negatives = is_positive.numel() - num_positives};
}

/// Returns the curve for fixed thresholds.
/// @param counts  int64 [2, thresholds + 1], on the CPU. Row 0 counts the negative samples and row
///        1 the positive samples; column k counts those whose score reaches exactly k thresholds.
RankingCurve binned_ranking_curve(const at::Tensor& counts) {
  const at::Tensor reached = counts.flip(1).cumsum(1);
  const at::Tensor sums = reached.slice(1, 0, -1);  // the last includes those that reach none
  const at::Tensor totals = reached.select(1, -1);
  return {.true_positives = sums[1],
          .false_positives = sums[0],
          .num_positives = totals[1].item<int64_t>(),
          .num_negatives = totals[0].item<int64_t>()};
}

/// The trapezoidal rule, in which equal scores count half.
double trapezoid_area(const RankingCurve& curve) {
  const double num_pairs =
      static_cast<double>(curve.num_positives) * static_cast<double>(curve.num_negatives);
  if (num_pairs == 0.0) return kNaN;
  // In double, because the area for 2^31 positives and 2^31 negatives would overflow an int64.
  const at::Tensor heights = curve.true_positives.to(at::kDouble);
  const at::Tensor doubled_heights = heights.slice(0, 1) + heights.slice(0, 0, -1);
  const at::Tensor doubled_area =
      (curve.false_positives.to(at::kDouble).diff() * doubled_heights).sum();
  return doubled_area.item<double>() / (2.0 * num_pairs);
}

/// The sum of rectangles, one for each threshold.
double step_area(const RankingCurve& curve) {
  if (curve.num_positives == 0) return 0.0;
  const at::Tensor hits = curve.true_positives.to(at::kDouble);
  // Above the highest score the precision is 0/0, but the gain there is 0.
  const at::Tensor precision = (hits / (hits + curve.false_positives)).nan_to_num(0.0);
  const at::Tensor gains = hits.diff(1, 0, /*prepend=*/at::zeros({1}, at::kDouble));
  return (gains * precision).sum().item<double>() / static_cast<double>(curve.num_positives);
}

}  // namespace

RankingCurveMetric::RankingCurveMetric(std::string name, RankingCurveOptions options, Area area)
    : name_(std::move(name)), options_(options), area_(area) {
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
  std::vector<double> values;
  for (const auto& curve : curves) values.push_back(has_samples ? area_(curve) : kNaN);
  if (options_.average == RankingAverage::none && options_.num_classes) {
    return at::tensor(values, at::kDouble);
  }
  return at::scalar_tensor(options_.num_classes ? averaged(values, curves) : values[0],
                           at::kDouble);
}

AUROC::AUROC(RankingCurveOptions options) : RankingCurveMetric("AUROC", options, trapezoid_area) {}

AveragePrecision::AveragePrecision(RankingCurveOptions options)
    : RankingCurveMetric("AveragePrecision", options, step_area) {}

}  // namespace linkboy
