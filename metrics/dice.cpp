#include "linkboy/metrics/dice.hpp"

#include <ATen/ATen.h>

#include <limits>

namespace linkboy {

Dice::Dice(const ClassificationOptions& options)
    : ClassCountsMetric(options, {.average = options.average,
                                  .undefined_score = std::numeric_limits<double>::quiet_NaN(),
                                  .undefined_average = std::numeric_limits<double>::quiet_NaN(),
                                  .drop_ignored_class = true}) {}

Dice::Fraction Dice::fraction_of(const Counts& counts) const {
  const at::Tensor twice = 2.0 * counts.true_positives;
  return {twice, twice + counts.false_positives + counts.false_negatives};
}

}  // namespace linkboy
