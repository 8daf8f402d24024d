// Expresses F-beta as weights of the counts in class_counts.cpp.

#include "linkboy/metrics/f_beta.hpp"

#include <cmath>

#include "linkboy/error.hpp"

namespace linkboy {

FBeta::FBeta(const FBetaOptions& options)
    : ClassCountsMetric(ClassPredictionOptions{.num_classes = options.num_classes,
                                               .ignore_index = options.ignore_index,
                                               .threshold = options.threshold},
                        {.average = options.average,
                         .true_positive_weight = 1.0 + options.beta * options.beta,
                         .false_negative_weight = options.beta * options.beta,
                         .false_positive_weight = 1.0}) {
  LINKBOY_CHECK_OPTION(std::isfinite(options.beta * options.beta) && options.beta > 0.0, "beta is ",
                       options.beta, "; it must be positive and finite.");
}

}  // namespace linkboy
