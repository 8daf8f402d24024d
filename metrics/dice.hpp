#pragma once

#include <limits>

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"
#include "linkboy/util/make.hpp"

namespace linkboy {

/// The Dice coefficient 2 |A n B| / (|A| + |B|) over all batches, where A is the set of samples
/// (pixels) of a class and B is the set of samples that are predicted as that class. An absent
/// class, which is neither a label nor predicted, has the value NaN and is left out of the mean; if
/// all classes are absent, the mean is NaN. The class `ignore_index` is treated as absent, even if
/// it is predicted.
class LINKBOY_API Dice : public ClassCountsMetric {
 public:
  /// The options type for `make<Dice>({...})`.
  using Options = ClassificationOptions;

  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  explicit Dice(const ClassificationOptions& options)
      : ClassCountsMetric(options, {.average = options.average,
                                    .true_positive_weight = 2.0,
                                    .false_negative_weight = 1.0,
                                    .false_positive_weight = 1.0,
                                    .undefined_score = std::numeric_limits<double>::quiet_NaN(),
                                    .undefined_average = std::numeric_limits<double>::quiet_NaN(),
                                    .drop_ignored_class = true}) {}
};
/// Makes a Dice.
inline constexpr Maker<Dice> dice{};

}  // namespace linkboy
