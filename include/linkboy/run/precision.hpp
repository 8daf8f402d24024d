#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "linkboy/export.hpp"
#include "linkboy/util/text_options.hpp"

namespace linkboy {

/// The type in which LibTorch's autocast computes losses. Parameters, gradients and optimizer
/// states keep their types.
enum class Precision {
  fp32,  ///< no autocast: each operation runs in the type of its tensors
  bf16,
  fp16,  ///< with a GradScaler
};

LINKBOY_ENUM_NAMES(Precision, fp32, bf16, fp16)

/// Parses a Precision. Also accepts "no" for fp32.
template <>
inline Precision from_text<Precision>(const std::string& text) {
  return text == "no" ? Precision::fp32 : enum_from_text<Precision>(text);
}

/// Returns the type that autocast uses; nullopt for fp32.
LINKBOY_API std::optional<c10::ScalarType> autocast_dtype(Precision precision);

}  // namespace linkboy
