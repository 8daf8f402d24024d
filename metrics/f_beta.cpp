#include "linkboy/metrics/f_beta.hpp"

#include <ATen/ATen.h>

#include <cmath>

#include "linkboy/error.hpp"

namespace linkboy {

FBeta::FBeta(const FBetaOptions& options)
    : ClassCountsMetric(ClassPredictionOptions{.num_classes = options.num_classes,
                                               .ignore_index = options.ignore_index,
                                               .threshold = options.threshold},
                        {.average = options.average}),
      beta_squared_(options.beta * options.beta) {
  LINKBOY_CHECK_OPTION(std::isfinite(beta_squared_) && options.beta > 0.0, "beta is ", options.beta,
                       "; it must be above 0 and finite.");
}

FBeta::Fraction FBeta::fraction_of(const Counts& counts) const {
  const at::Tensor hits = (1.0 + beta_squared_) * counts.true_positives;
  return {hits, hits + beta_squared_ * counts.false_negatives + counts.false_positives};
}

}  // namespace linkboy
