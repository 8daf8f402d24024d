#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metric.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// How the values of the classes are combined.
enum class RankingAverage {
  /// The mean.
  macro,
  /// The mean, weighted by the number of targets of each class.
  weighted,
  /// No averaging; returns one value per class, shape [num_classes].
  none
};

LINKBOY_ENUM_NAMES(RankingAverage, macro, weighted, none)

struct RankingCurveOptions {
  /// Number of classes, each of which is compared with the rest. Must be at least 2. If not set,
  /// there are two classes and one score per sample.
  std::optional<int64_t> num_classes{};
  /// How the values of several classes are combined. The mean excludes classes whose value is NaN.
  RankingAverage average = RankingAverage::macro;
  /// Number of evenly spaced thresholds from 0 to 1 at which the samples are counted. Must be at
  /// least 2. The scores must then lie in [0, 1]. If not set, all scores are stored and the value
  /// is exact.
  std::optional<int64_t> thresholds{};
  /// Whether the outputs are logits. If true, a sigmoid or, with `num_classes`, a softmax is
  /// applied to them. torchmetrics guesses this from the values of each batch.
  bool from_logits = false;

  LINKBOY_FIELDS(num_classes, average, thresholds, from_logits);
};

struct RankingCurve;  // the true and false positives for each threshold

/// Base class of AUROC and AveragePrecision, which compare the scores of positive and negative
/// samples.
///
/// Without `num_classes`, outputs and targets have the same shape, or the shapes [N, 1, ...] and
/// [N, ...]. Each element is a sample, and targets are 0 or 1. With `num_classes`, outputs are
/// [N, C, ...] and targets are [N, ...], in [0, C). Targets are integers or bool. The exact value
/// needs 8 bytes of memory for each score and 8 bytes for each target.
class LINKBOY_API RankingCurveMetric : public Metric {
 public:
  /// @throws Error if shapes or dtypes are invalid, or, on the CPU, if a target is out of range, or
  ///         a score is NaN or, with `thresholds`, not in [0, 1].
  void update(const at::Tensor& outputs, const at::Tensor& targets) override;

 protected:
  /// Returns the value of a class that has samples.
  using Area = double (*)(const RankingCurve& curve);

  /// @param name  Name of the metric in errors.
  /// @throws OptionError if an option is out of range.
  RankingCurveMetric(std::string name, RankingCurveOptions options, Area area);

 private:
  at::Tensor value_of(const std::vector<at::Tensor>& states) const final;

  void check_shapes(const at::Tensor& outputs, const at::Tensor& targets) const;
  at::Tensor scores_of(const at::Tensor& outputs) const;
  void count(const at::Tensor& scores, const at::Tensor& targets);
  std::vector<RankingCurve> curves_of(const std::vector<at::Tensor>& states) const;
  double averaged(const std::vector<double>& values, const std::vector<RankingCurve>& curves) const;
  /// Whether all scores are stored and each of them is a threshold.
  bool is_exact() const { return !options_.thresholds; }
  int64_t num_columns() const { return options_.num_classes.value_or(1); }

  std::string name_;
  RankingCurveOptions options_;
  Area area_;
  at::Tensor thresholds_;
};

/// Area under the ROC curve: the probability that a positive sample has a higher score than a
/// negative one. Equal scores count half.
///
/// The value is a scalar; with RankingAverage::none and `num_classes`, its shape is [num_classes].
/// A class has the value NaN if all samples are positive, if all are negative, or before the first
/// sample. The mean excludes such a class, and is NaN if no class is left.
class LINKBOY_API AUROC : public RankingCurveMetric {
 public:
  /// The options type for `make<AUROC>({...})`.
  using Options = RankingCurveOptions;

  /// @throws OptionError if an option is out of range.
  explicit AUROC(RankingCurveOptions options = {});
};
/// Makes an AUROC.
inline constexpr Maker<AUROC> auroc{};

/// Average precision: the sum over the thresholds, from high to low, of the precision times the
/// increase in recall.
///
/// The value is a scalar; with RankingAverage::none and `num_classes`, its shape is [num_classes].
/// The value is NaN before the first sample. As in scikit-learn, a class without positive samples
/// has the value 0.
class LINKBOY_API AveragePrecision : public RankingCurveMetric {
 public:
  /// The options type for `make<AveragePrecision>({...})`.
  using Options = RankingCurveOptions;

  /// @throws OptionError if an option is out of range.
  explicit AveragePrecision(RankingCurveOptions options = {});
};
/// Makes an AveragePrecision.
inline constexpr Maker<AveragePrecision> average_precision{};

}  // namespace linkboy
