#include "linkboy/metrics/value_check.hpp"

#include <ATen/ATen.h>

#include "linkboy/error.hpp"

namespace linkboy {

void check_values(const at::Tensor& values, const at::Tensor& is_violation, std::string_view rule) {
  if (!is_violation.any().item<bool>()) return;
  const auto first = is_violation.flatten().to(at::kByte).argmax().item<int64_t>();
  throw Error(
      c10::str(rule, " Element ", first, " of the batch is ", values.flatten()[first].item(), "."));
}

}  // namespace linkboy
