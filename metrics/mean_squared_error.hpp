#pragma once

#include <cstdint>
#include <vector>

#include "linkboy/export.hpp"
#include "linkboy/metrics/regression_rows.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

struct MeanSquaredErrorOptions {
  /// False gives the root of the mean squared error.
  bool squared = true;
  /// More than 1 gives a value for each column. At least 1.
  int64_t num_outputs = 1;

  LINKBOY_FIELDS(squared, num_outputs);
};

/// Mean of (output - target)^2, over all elements; with `num_outputs` > 1 over the rows.
///
/// Outputs and targets have the same shape, any with one output, else [N, num_outputs]. The value
/// is a scalar, or [num_outputs]; NaN before the first element.
class LINKBOY_API MeanSquaredError : public MeanErrorMetric {
 public:
  /// What `make<MeanSquaredError>({...})` takes.
  using Options = MeanSquaredErrorOptions;

  /// @throws Error if `num_outputs` is less than 1.
  explicit MeanSquaredError(MeanSquaredErrorOptions options = {});

 protected:
  at::Tensor value_of(const std::vector<at::Tensor>& states) const override;

 private:
  bool is_squared_;
};

}  // namespace linkboy
