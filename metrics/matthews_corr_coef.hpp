#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/confusion_counts.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct MatthewsCorrCoefOptions {
  /// At least 2.
  Required<int64_t> num_classes;
  /// Samples with this label do not count. It need not be a class.
  std::optional<int64_t> ignore_index{};
  /// With one score per sample: those above it are of class 1. It is compared with the outputs as
  /// they are: 0.5 is right for probabilities, 0 for logits.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, ignore_index, threshold);
};

/// The Matthews correlation coefficient of labels and predictions, in [-1, 1]. Where it is 0/0 it
/// is 0, but with two classes, as in torchmetrics 1.9.0: 1 if all samples are right, -1 if all are
/// wrong, and else, where only one class is predicted or only one is a label,
/// (right - wrong) / sqrt((right + wrong) right wrong).
class LINKBOY_API MatthewsCorrCoef : public ConfusionCountsMetric {
 public:
  /// What `make<MatthewsCorrCoef>({...})` takes.
  using Options = MatthewsCorrCoefOptions;

  /// @throws Error if the options are not allowed.
  explicit MatthewsCorrCoef(const MatthewsCorrCoefOptions& options);

 protected:
  at::Tensor value_of_counts(const at::Tensor& counts) const override;
};

}  // namespace linkboy
