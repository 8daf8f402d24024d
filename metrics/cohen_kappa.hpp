#pragma once

#include "linkboy/export.hpp"
#include "linkboy/metrics/confusion_counts.hpp"
#include "linkboy/util/required.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// How much a disagreement between classes i and j counts.
enum class KappaWeights {
  none,       ///< 1
  linear,     ///< |i - j|
  quadratic,  ///< (i - j)^2
};

LINKBOY_ENUM_NAMES(KappaWeights, none, linear, quadratic)

struct CohenKappaOptions {
  /// At least 2.
  Required<int64_t> num_classes;
  /// What a disagreement costs.
  KappaWeights weights = KappaWeights::none;
  /// Samples with this label do not count. It need not be a class.
  std::optional<int64_t> ignore_index{};
  /// With one score per sample: those above it are of class 1. It is compared with the outputs as
  /// they are: 0.5 is right for probabilities, 0 for logits.
  double threshold = 0.5;

  LINKBOY_FIELDS(num_classes, weights, ignore_index, threshold);
};

/// Cohen's kappa: by how much labels and predictions agree beyond chance, where 1 is always. NaN
/// where chance leaves nothing to disagree about, as with a single class, and without samples.
class LINKBOY_API CohenKappa : public ConfusionCountsMetric {
 public:
  /// What `make<CohenKappa>({...})` takes.
  using Options = CohenKappaOptions;

  /// @throws Error if the options are not allowed.
  explicit CohenKappa(const CohenKappaOptions& options);

 protected:
  at::Tensor value_of_counts(const at::Tensor& counts) const override;

 private:
  KappaWeights weights_;
};

}  // namespace linkboy
