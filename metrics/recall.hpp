#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"

namespace linkboy {

/// Of the samples of a class, the part that was predicted to be. 0 where there are none.
class LINKBOY_API Recall : public ClassCountsMetric {
 public:
  /// What `make<Recall>({...})` takes.
  using Options = ClassificationOptions;

  /// @throws Error if the options are not allowed.
  explicit Recall(const ClassificationOptions& options);

 protected:
  Fraction fraction_of(const Counts& counts) const override;
};

}  // namespace linkboy
