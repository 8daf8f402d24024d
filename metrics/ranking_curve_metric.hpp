#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/metric.hpp"
#include "linkboy/metrics/ranking_curve.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// How the values of the classes become one.
enum class RankingAverage {
  /// Their mean.
  macro,
  /// Their mean, weighted by the number of targets of each class.
  weighted,
  /// Not: the value is [num_classes].
  none
};

LINKBOY_ENUM_NAMES(RankingAverage, macro, weighted, none)

struct RankingCurveOptions {
  /// The number of classes, each against the rest; at least 2. Absent: two classes, one score.
  std::optional<int64_t> num_classes{};
  /// The average over several classes. Classes whose value is NaN are left out.
  RankingAverage average = RankingAverage::macro;
  /// Absent keeps all scores, for the exact value. Otherwise the samples are counted at so many
  /// thresholds from 0 to 1, evenly spaced; at least 2. Scores must lie in [0, 1] then.
  std::optional<int64_t> thresholds{};
  /// Whether outputs are logits, which go through a sigmoid or (several classes) a softmax.
  /// torchmetrics guesses it from the values of each batch.
  bool from_logits = false;

  LINKBOY_FIELDS(num_classes, average, thresholds, from_logits);
};

/// What AUROC and AveragePrecision have in common: scores of samples and whether they are positive.
///
/// Without `num_classes` outputs and targets have the same shape, or [N, 1] and [N]; each element
/// is a sample, and targets are 0 or 1. With it outputs are [N, C, ...] and targets [N, ...], in
/// [0, C). Targets are integers or bool. The exact value takes 8 bytes per score and target.
class LINKBOY_API RankingCurveMetric : public Metric {
 public:
  /// @throws Error if shapes or dtypes do not fit, a target is out of its range, or a score is NaN
  ///         or, with `thresholds`, not in [0, 1].
  void update(const at::Tensor& outputs, const at::Tensor& targets) override;

 protected:
  /// @param name  In errors.
  /// @throws Error if an option is out of its range.
  RankingCurveMetric(std::string name, RankingCurveOptions options);

  /// @param curves  Of each class, or the only one. There are samples, if it is exact.
  virtual std::vector<double> values_of(const std::vector<RankingCurve>& curves) const = 0;

  /// Whether every score is a threshold, and all are kept.
  bool is_exact() const { return !options_.thresholds; }

 private:
  at::Tensor value_of(const std::vector<at::Tensor>& states) const final;

  void check_shapes(const at::Tensor& outputs, const at::Tensor& targets) const;
  at::Tensor scores_of(const at::Tensor& outputs) const;
  void count(const at::Tensor& scores, const at::Tensor& targets);
  std::vector<RankingCurve> curves_of(const std::vector<at::Tensor>& states) const;
  double averaged(const std::vector<double>& values, const std::vector<RankingCurve>& curves) const;
  int64_t num_columns() const { return options_.num_classes.value_or(1); }

  std::string name_;
  RankingCurveOptions options_;
  at::Tensor thresholds_;
};

}  // namespace linkboy
