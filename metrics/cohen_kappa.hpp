#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/confusion_counts.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// The weight of a disagreement between classes i and j.
enum class KappaWeights {
  none,       ///< 1
  linear,     ///< |i - j|
  quadratic,  ///< (i - j)^2
};

LINKBOY_ENUM_NAMES(KappaWeights, none, linear, quadratic)

struct CohenKappaOptions {
  /// Number of classes. Must be at least 2.
  Required<int64_t> num_classes;
  /// The weight of a disagreement.
  KappaWeights weights = KappaWeights::none;
  /// Label of samples to ignore. It does not have to be in [0, num_classes).
  std::optional<int64_t> ignore_index{};
  /// If the outputs have one score per sample, scores above this value are class 1. The outputs are
  /// compared without conversion: use 0.5 for probabilities and 0 for logits. Must not be NaN.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, weights, ignore_index, threshold);
};

/// Cohen's kappa: the agreement of labels and predictions beyond chance; 1 is complete agreement.
/// The value is NaN if no disagreement is expected by chance, for example because only one class
/// occurs, or if there are no samples.
class LINKBOY_API CohenKappa : public ConfusionCountsMetric {
 public:
  /// The options type for `make<CohenKappa>({...})`.
  using Options = CohenKappaOptions;

  /// @throws OptionError if an option is out of range.
  explicit CohenKappa(const CohenKappaOptions& options);

 protected:
  at::Tensor value_of_counts(const at::Tensor& counts) const override;

 private:
  KappaWeights weights_;
};
/// Makes a CohenKappa.
inline constexpr Maker<CohenKappa> cohen_kappa{};

}  // namespace linkboy
