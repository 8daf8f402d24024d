#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "linkboy/export.hpp"

namespace linkboy {

/// How many positive and negative samples have a score of at least a threshold, for thresholds from
/// high to low: what the ROC and the precision-recall curve are made of.
struct RankingCurve {
  at::Tensor true_positives;   ///< int64 [thresholds]
  at::Tensor false_positives;  ///< int64 [thresholds]
  int64_t num_positives = 0;   ///< all of them
  int64_t num_negatives = 0;   ///< all of them
};

/// With each score as a threshold, and one above all of them. Samples with equal scores are one
/// point, so that their order does not matter.
/// @param scores       [N], on the CPU.
/// @param is_positive  Bool [N].
LINKBOY_API RankingCurve exact_ranking_curve(const at::Tensor& scores,
                                             const at::Tensor& is_positive);

/// With fixed thresholds, from samples that were counted by the number of thresholds that their
/// score reaches.
/// @param counts  int64 [2, thresholds + 1], the negatives first; on the CPU.
LINKBOY_API RankingCurve binned_ranking_curve(const at::Tensor& counts);

}  // namespace linkboy
