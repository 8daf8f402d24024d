#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/confusion_counts.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// The divisor of the counts in a confusion matrix.
enum class Normalize {
  none,         ///< no division
  labels,       ///< the number of samples with the label; each row adds up to 1
  predictions,  ///< the number of samples with the prediction; each column adds up to 1
  all,          ///< the total number of samples
};

LINKBOY_ENUM_NAMES(Normalize, none, labels, predictions, all)

struct ConfusionMatrixOptions {
  /// Number of classes. Must be at least 2.
  Required<int64_t> num_classes;
  /// The divisor of the counts.
  Normalize normalize = Normalize::none;
  /// Label of samples to ignore. It does not have to be in [0, num_classes).
  std::optional<int64_t> ignore_index{};
  /// If the outputs have one score per sample, scores above this value are class 1. The outputs are
  /// compared without conversion: use 0.5 for probabilities and 0 for logits. Must not be NaN.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, normalize, ignore_index, threshold);
};

/// The number of samples for each pair of label and prediction: [num_classes, num_classes], where
/// rows are labels and columns are predictions. If the divisor of a count is 0, the value is 0.
class LINKBOY_API ConfusionMatrix : public ConfusionCountsMetric {
 public:
  /// The options type for `make<ConfusionMatrix>({...})`.
  using Options = ConfusionMatrixOptions;

  /// @throws OptionError if an option is out of range.
  explicit ConfusionMatrix(const ConfusionMatrixOptions& options);

 protected:
  at::Tensor value_of_counts(const at::Tensor& counts) const override;

 private:
  Normalize normalize_;
};
/// Makes a ConfusionMatrix.
inline constexpr Maker<ConfusionMatrix> confusion_matrix{};

}  // namespace linkboy
