#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "linkboy/export.hpp"

namespace linkboy {

/// What LibTorch's autocast computes losses in. Parameters, gradients and optimizer states keep
/// their own types.
enum class Precision {
  fp32,  ///< no autocast: each operation runs in the type of its tensors
  bf16,
  fp16,  ///< with a GradScaler
};

/// Returns "fp32", "bf16" or "fp16".
LINKBOY_API std::string to_string(Precision precision);
/// Reads what `to_string` returns, or "no" for fp32.
LINKBOY_API void read_text(const std::string& text, Precision& precision);

/// Returns the type that autocast uses; nothing for fp32.
LINKBOY_API std::optional<c10::ScalarType> autocast_dtype(Precision precision);

}  // namespace linkboy
