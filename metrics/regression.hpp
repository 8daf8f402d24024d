#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metric.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// Base class of metrics that average an elementwise error over the rows.
class LINKBOY_API MeanErrorMetric : public Metric {
 public:
  /// @throws Error if the shapes do not match, or if a dtype is complex.
  void update(const at::Tensor& outputs, const at::Tensor& targets) override;

 protected:
  /// @param name   Name of the metric in errors.
  /// @param error  Converts the differences (output - target) to errors, element by element.
  /// @param has_root  Whether the value is the root of the mean.
  /// @throws OptionError if `num_outputs` is less than 1.
  MeanErrorMetric(const char* name, int64_t num_outputs, at::Tensor (*error)(const at::Tensor&),
                  bool has_root = false);

  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  const char* name_;
  int64_t num_outputs_;
  at::Tensor (*error_)(const at::Tensor&);
  bool has_root_;
};

struct MeanAbsoluteErrorOptions {
  /// Number of outputs. If above 1, each column has its own value. Must be at least 1.
  int64_t num_outputs = 1;

  LINKBOY_FIELDS(num_outputs);
};

/// The mean of |output - target| over all elements or, if `num_outputs` is above 1, over the rows
/// of each column.
///
/// Outputs and targets have the same shape: any shape if `num_outputs` is 1, otherwise
/// [N, num_outputs]. The value is a scalar, or [num_outputs] if `num_outputs` is above 1. It is NaN
/// before the first element.
class LINKBOY_API MeanAbsoluteError : public MeanErrorMetric {
 public:
  /// The options type for `make<MeanAbsoluteError>({...})`.
  using Options = MeanAbsoluteErrorOptions;

  /// @throws OptionError if `num_outputs` is less than 1.
  explicit MeanAbsoluteError(MeanAbsoluteErrorOptions options = {});
};
/// Makes a MeanAbsoluteError.
inline constexpr Maker<MeanAbsoluteError> mean_absolute_error{};

struct MeanSquaredErrorOptions {
  /// If false, the value is the root of the mean squared error.
  bool squared = true;
  /// Number of outputs. If above 1, each column has its own value. Must be at least 1.
  int64_t num_outputs = 1;

  LINKBOY_FIELDS(squared, num_outputs);
};

/// The mean of (output - target)^2 over all elements or, if `num_outputs` is above 1, over the rows
/// of each column.
///
/// Outputs and targets have the same shape: any shape if `num_outputs` is 1, otherwise
/// [N, num_outputs]. The value is a scalar, or [num_outputs] if `num_outputs` is above 1. It is NaN
/// before the first element.
class LINKBOY_API MeanSquaredError : public MeanErrorMetric {
 public:
  /// The options type for `make<MeanSquaredError>({...})`.
  using Options = MeanSquaredErrorOptions;

  /// @throws OptionError if `num_outputs` is less than 1.
  explicit MeanSquaredError(MeanSquaredErrorOptions options = {});
};
/// Makes a MeanSquaredError.
inline constexpr Maker<MeanSquaredError> mean_squared_error{};

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
