#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/regression_rows.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

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

 protected:
  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  bool is_squared_;
};
/// Makes a MeanSquaredError.
inline constexpr Maker<MeanSquaredError> mean_squared_error{};

}  // namespace linkboy
