#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"

namespace linkboy {

/// The Dice coefficient 2 |A n B| / (|A| + |B|), of the samples (pixels) of a class and those
/// predicted to be, counted over all batches. NaN for a class that does not occur, which the mean
/// leaves out; the mean is NaN if none does. The class `ignore_index` does not occur, even where it
/// is predicted.
class LINKBOY_API Dice : public ClassCountsMetric {
 public:
  /// What `make<Dice>({...})` takes.
  using Options = ClassificationOptions;

  /// @throws Error if the options are not allowed.
  explicit Dice(const ClassificationOptions& options);

 protected:
  Fraction fraction_of(const Counts& counts) const override;
};

}  // namespace linkboy
