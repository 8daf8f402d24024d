#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "linkboy/export.hpp"

namespace linkboy {

/// The numbers of positive and negative samples whose score reaches a threshold, for thresholds
/// from high to low. The ROC curve and the precision-recall curve are computed from them.
struct RankingCurve {
  at::Tensor true_positives;   ///< int64 [thresholds]
  at::Tensor false_positives;  ///< int64 [thresholds]
  int64_t num_positives = 0;   ///< all positive samples
  int64_t num_negatives = 0;   ///< all negative samples
};

/// Returns the curve for a threshold above all scores, followed by each distinct score in
/// descending order. Samples with equal scores form one point, so their order does not matter.
/// @param scores       [N], on the CPU.
/// @param is_positive  Bool [N].
LINKBOY_API RankingCurve exact_ranking_curve(const at::Tensor& scores,
                                             const at::Tensor& is_positive);

/// Returns the curve for fixed thresholds.
/// @param counts  int64 [2, thresholds + 1], on the CPU. Row 0 counts the negative samples and row
///        1 the positive samples; column k counts those whose score reaches exactly k thresholds.
LINKBOY_API RankingCurve binned_ranking_curve(const at::Tensor& counts);

}  // namespace linkboy
