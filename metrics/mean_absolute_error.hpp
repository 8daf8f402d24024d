#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/regression_rows.hpp"
#include "linkboy/util/make.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

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

}  // namespace linkboy
