// True and false positives for each threshold, from sorted scores or from counts per interval.

#include "linkboy/metrics/ranking_curve.hpp"

#include <ATen/ATen.h>

namespace linkboy {
namespace {

/// Returns 0, followed by the running sums of `flags` at the positions where `is_end` is true.
at::Tensor sums_at(const at::Tensor& is_end, const at::Tensor& flags) {
  const at::Tensor sums = flags.to(at::kLong).cumsum(0).masked_select(is_end);
  return at::cat({at::zeros({1}, at::kLong), sums});
}

}  // namespace

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

RankingCurve binned_ranking_curve(const at::Tensor& counts) {
  const at::Tensor reached = counts.flip(1).cumsum(1);
  const at::Tensor sums = reached.slice(1, 0, -1);  // the last includes those that reach none
  const at::Tensor totals = reached.select(1, -1);
  return {.true_positives = sums[1],
          .false_positives = sums[0],
          .num_positives = totals[1].item<int64_t>(),
          .num_negatives = totals[0].item<int64_t>()};
}

}  // namespace linkboy
