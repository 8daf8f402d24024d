#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/class_counts.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct AccuracyOptions {
  /// At least 2.
  Required<int64_t> num_classes;
  /// A sample is right if its label has one of this many highest scores. In [1, num_classes]; above
  /// 1 the outputs must be scores.
  int64_t top_k = 1;
  /// `binary` equals `micro` for two classes.
  Average average = Average::micro;
  /// Samples with this label do not count. It need not be a class.
  std::optional<int64_t> ignore_index{};
  /// With one score per sample: those above it are of class 1. It is compared with the outputs as
  /// they are: 0.5 is right for probabilities, 0 for logits.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, top_k, average, ignore_index, threshold);
};

/// The part of the samples whose class is right; per class, of those with its label. 0 where there
/// are none.
class LINKBOY_API Accuracy : public ClassCountsMetric {
 public:
  /// What `make<Accuracy>({...})` takes.
  using Options = AccuracyOptions;

  /// @throws Error if the options are not allowed.
  explicit Accuracy(const AccuracyOptions& options)
      : ClassCountsMetric(ClassPredictionOptions{.num_classes = options.num_classes,
                                                 .top_k = options.top_k,
                                                 .ignore_index = options.ignore_index,
                                                 .threshold = options.threshold},
                          {.average = average_of(options), .false_negative_weight = 1.0}) {}

 private:
  /// A sample is right or not whatever its class, so that class 1 has no accuracy of its own.
  static Average average_of(const AccuracyOptions& options) {
    const bool is_binary = options.average == Average::binary && options.num_classes == 2;
    return is_binary ? Average::micro : options.average;
  }
};

}  // namespace linkboy
