#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/regression_rows.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct MeanAbsoluteErrorOptions {
  /// More than 1 gives a value for each column. At least 1.
  int64_t num_outputs = 1;

  LINKBOY_FIELDS(num_outputs);
};

/// Mean of |output - target|, over all elements; with `num_outputs` > 1 over the rows.
///
/// Outputs and targets have the same shape, any with one output, else [N, num_outputs]. The value
/// is a scalar, or [num_outputs]; NaN before the first element.
class LINKBOY_API MeanAbsoluteError : public MeanErrorMetric {
 public:
  /// What `make<MeanAbsoluteError>({...})` takes.
  using Options = MeanAbsoluteErrorOptions;

  /// @throws Error if `num_outputs` is less than 1.
  explicit MeanAbsoluteError(MeanAbsoluteErrorOptions options = {});
};

}  // namespace linkboy
