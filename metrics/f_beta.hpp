#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct FBetaOptions {
  /// At least 2.
  Required<int64_t> num_classes;
  /// How many times as much recall weighs as precision. Above 0.
  double beta = 1.0;
  /// How the values of the classes become one.
  Average average = Average::macro;
  /// Samples with this label do not count. It need not be a class.
  std::optional<int64_t> ignore_index{};
  /// With one score per sample: those above it are of class 1. It is compared with the outputs as
  /// they are: 0.5 is right for probabilities, 0 for logits.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, beta, average, ignore_index, threshold);
};

/// The weighted harmonic mean of precision and recall; F1 by default. 0 where both have no samples.
class LINKBOY_API FBeta : public ClassCountsMetric {
 public:
  /// What `make<FBeta>({...})` takes.
  using Options = FBetaOptions;

  /// @throws Error if the options are not allowed.
  explicit FBeta(const FBetaOptions& options);
};

}  // namespace linkboy
