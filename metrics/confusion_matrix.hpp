#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/confusion_counts.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// What the counts of a confusion matrix are divided by.
enum class Normalize {
  none,
  labels,       ///< the number of samples with the label: rows add up to 1
  predictions,  ///< the number of samples with the prediction: columns add up to 1
  all,          ///< the number of samples
};

LINKBOY_ENUM_NAMES(Normalize, none, labels, predictions, all)

struct ConfusionMatrixOptions {
  /// At least 2.
  Required<int64_t> num_classes;
  /// What the counts are divided by.
  Normalize normalize = Normalize::none;
  /// Samples with this label do not count. It need not be a class.
  std::optional<int64_t> ignore_index{};
  /// With one score per sample: those above it are of class 1. It is compared with the outputs as
  /// they are: 0.5 is right for probabilities, 0 for logits.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, normalize, ignore_index, threshold);
};

/// How often each label met each prediction: [num_classes, num_classes], labels are rows,
/// predictions columns. What nothing was divided by is 0.
class LINKBOY_API ConfusionMatrix : public ConfusionCountsMetric {
 public:
  /// What `make<ConfusionMatrix>({...})` takes.
  using Options = ConfusionMatrixOptions;

  /// @throws Error if the options are not allowed.
  explicit ConfusionMatrix(const ConfusionMatrixOptions& options);

 protected:
  at::Tensor value_of_counts(const at::Tensor& counts) const override;

 private:
  Normalize normalize_;
};

}  // namespace linkboy
