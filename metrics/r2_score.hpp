#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/metric.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// How the scores of several outputs become one.
enum class R2Average {
  /// Their mean.
  uniform,
  /// Their mean, weighted by the variances of the targets.
  variance_weighted,
  /// Not: the value is [num_outputs].
  none
};

LINKBOY_ENUM_NAMES(R2Average, uniform, variance_weighted, none)

struct R2ScoreOptions {
  /// At least 1.
  int64_t num_outputs = 1;
  /// How the scores of several outputs become one.
  R2Average average = R2Average::uniform;
  /// Number of independent regressors, for the adjusted score; 0 for the plain one. Not negative.
  /// From the number of samples - 1 on the score is not adjusted.
  int64_t adjusted = 0;

  LINKBOY_FIELDS(num_outputs, average, adjusted);
};

/// The coefficient of determination: 1 - sum (target - output)^2 / sum (target - mean target)^2.
///
/// Outputs and targets are [N] or [N, 1] with one output, else [N, num_outputs]. The value is a
/// scalar, or with R2Average::none and several outputs [num_outputs]. Sums of squares of at most
/// 1e-4 count as zero, as in torchmetrics: an output without residuals has the score 1, one whose
/// targets are constant otherwise 0.
class LINKBOY_API R2Score : public Metric {
 public:
  /// What `make<R2Score>({...})` takes.
  using Options = R2ScoreOptions;

  /// @throws Error if an option is out of its range.
  explicit R2Score(R2ScoreOptions options = {});

  /// @throws Error if the shapes do not fit, or a dtype is complex.
  void update(const at::Tensor& outputs, const at::Tensor& targets) override;

 protected:
  /// @throws Error with less than two samples, which have no variance.
  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  at::Tensor averaged(const at::Tensor& scores, const at::Tensor& total_squares) const;

  R2ScoreOptions options_;
};

}  // namespace linkboy
