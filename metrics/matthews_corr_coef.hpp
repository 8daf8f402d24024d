#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/confusion_counts.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct MatthewsCorrCoefOptions {
  /// Number of classes. Must be at least 2.
  Required<int64_t> num_classes;
  /// Label of samples to ignore. It does not have to be in [0, num_classes).
  std::optional<int64_t> ignore_index{};
  /// If the outputs have one score per sample, scores above this value are class 1. The outputs are
  /// compared without conversion: use 0.5 for probabilities and 0 for logits. Must not be NaN.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, ignore_index, threshold);
};

/// The Matthews correlation coefficient of labels and predictions, in [-1, 1]. As in scikit-learn,
/// the value is 0 if only one class is predicted or only one class occurs as a label, even if all
/// samples are correct.
class LINKBOY_API MatthewsCorrCoef : public ConfusionCountsMetric {
 public:
  /// The options type for `make<MatthewsCorrCoef>({...})`.
  using Options = MatthewsCorrCoefOptions;

  /// @throws OptionError if an option is out of range.
  explicit MatthewsCorrCoef(const MatthewsCorrCoefOptions& options);

 protected:
  at::Tensor value_of_counts(const at::Tensor& counts) const override;
};
/// Makes a MatthewsCorrCoef.
inline constexpr Maker<MatthewsCorrCoef> matthews_corr_coef{};

}  // namespace linkboy
