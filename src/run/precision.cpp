// The dtype of autocast in each precision.

#include "linkboy/run/precision.hpp"

namespace linkboy {

std::optional<c10::ScalarType> autocast_dtype(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return std::nullopt;
    case Precision::bf16:
      return c10::ScalarType::BFloat16;
    case Precision::fp16:
      return c10::ScalarType::Half;
  }
  return std::nullopt;
}

}  // namespace linkboy
