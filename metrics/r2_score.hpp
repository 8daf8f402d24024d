#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/metric.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// How the scores of several outputs are combined.
enum class R2Average {
  /// The mean.
  uniform,
  /// The mean, weighted by the variances of the targets; the mean if all targets are constant.
  variance_weighted,
  /// No averaging; returns one value per output, shape [num_outputs].
  none
};

LINKBOY_ENUM_NAMES(R2Average, uniform, variance_weighted, none)

struct R2ScoreOptions {
  /// Number of outputs. Must be at least 1.
  int64_t num_outputs = 1;
  /// How the scores of several outputs are combined.
  R2Average average = R2Average::uniform;
  /// Number of independent regressors for the adjusted score; 0 for the plain score. If it is at
  /// least the number of samples - 1, the score is not adjusted. Must not be negative.
  int64_t adjusted = 0;

  LINKBOY_FIELDS(num_outputs, average, adjusted);
};

/// The coefficient of determination: 1 - sum (target - output)^2 / sum (target - mean target)^2.
///
/// Outputs and targets are [N] or [N, 1] if `num_outputs` is 1, otherwise [N, num_outputs]. The
/// value is a scalar; with R2Average::none and several outputs, its shape is [num_outputs]. It is
/// NaN with fewer than two samples. As in scikit-learn, an output without residuals has the score
/// 1, and any other output with constant targets has the score 0. Only sums of squares that are
/// exactly 0 count as zero, so the unit of the targets does not matter.
class LINKBOY_API R2Score : public Metric {
 public:
  /// The options type for `make<R2Score>({...})`.
  using Options = R2ScoreOptions;

  /// @throws OptionError if an option is out of range.
  explicit R2Score(R2ScoreOptions options = {});

  /// @throws Error if the shapes do not match, or if a dtype is complex.
  void update(const at::Tensor& outputs, const at::Tensor& targets) override;

 protected:
  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  at::Tensor averaged(const at::Tensor& scores, const at::Tensor& squares) const;

  R2ScoreOptions options_;
};
/// Makes a R2Score.
inline constexpr Maker<R2Score> r2_score{};

}  // namespace linkboy
