#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct AccuracyOptions {
  /// Number of classes. Must be at least 2.
  Required<int64_t> num_classes;
  /// A prediction is correct if the label is among the `top_k` highest scores. Of equal scores, the
  /// first counts as higher. Must be in [1, num_classes]. If above 1, the outputs must be scores of
  /// all classes.
  int64_t top_k = 1;
  /// How the values of the classes are combined. With two classes, `binary` is the same as `micro`.
  Average average = Average::micro;
  /// Label of samples to ignore. It does not have to be in [0, num_classes).
  std::optional<int64_t> ignore_index{};
  /// If the outputs have one score per sample, scores above this value are class 1. The outputs are
  /// compared without conversion: use 0.5 for probabilities and 0 for logits. Must not be NaN.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, top_k, average, ignore_index, threshold);
};

/// The fraction of samples that are predicted correctly. The value of a single class counts only
/// the samples with its label. The value is 0 if there are no such samples.
class LINKBOY_API Accuracy : public ClassCountsMetric {
 public:
  /// The options type for `make<Accuracy>({...})`.
  using Options = AccuracyOptions;

  /// @throws OptionError if an option is out of range, or if `average` is binary and `num_classes`
  ///         is not 2.
  explicit Accuracy(const AccuracyOptions& options)
      : ClassCountsMetric(ClassPredictionOptions{.num_classes = options.num_classes,
                                                 .top_k = options.top_k,
                                                 .ignore_index = options.ignore_index,
                                                 .threshold = options.threshold},
                          {.average = average_of(options), .false_negative_weight = 1.0}) {}

 private:
  /// Whether a sample is predicted correctly does not depend on its class, so class 1 does not have
  /// a separate accuracy.
  static Average average_of(const AccuracyOptions& options) {
    const bool is_binary = options.average == Average::binary && options.num_classes == 2;
    return is_binary ? Average::micro : options.average;
  }
};
/// Makes an Accuracy.
inline constexpr Maker<Accuracy> accuracy{};

}  // namespace linkboy
