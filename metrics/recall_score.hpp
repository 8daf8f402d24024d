#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"

namespace linkboy {

/// Of the samples of a class, the part that was predicted to be. 0 where there are none.
class LINKBOY_API RecallScore : public ClassCountsMetric {
 public:
  /// What `make<RecallScore>({...})` takes.
  using Options = ClassificationOptions;

  /// @throws Error if the options are not allowed.
  explicit RecallScore(const ClassificationOptions& options);

 protected:
  Fraction fraction_of(const Counts& counts) const override;
};

}  // namespace linkboy
