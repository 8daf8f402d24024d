#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct FBetaOptions {
  /// Number of classes. Must be at least 2.
  Required<int64_t> num_classes;
  /// Weight of the recall relative to the precision. Must be positive and finite.
  double beta = 1.0;
  /// How the values of the classes are combined.
  Average average = Average::macro;
  /// Label of samples to ignore. It does not have to be in [0, num_classes).
  std::optional<int64_t> ignore_index{};
  /// If the outputs have one score per sample, scores above this value are class 1. The outputs are
  /// compared without conversion: use 0.5 for probabilities and 0 for logits. Must not be NaN.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, beta, average, ignore_index, threshold);
};

/// The weighted harmonic mean of precision and recall; F1 by default. A class that does not occur
/// has the value 0.
class LINKBOY_API FBeta : public ClassCountsMetric {
 public:
  /// The options type for `make<FBeta>({...})`.
  using Options = FBetaOptions;

  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  explicit FBeta(const FBetaOptions& options);
};
/// Makes a FBeta.
inline constexpr Maker<FBeta> f_beta{};

}  // namespace linkboy
