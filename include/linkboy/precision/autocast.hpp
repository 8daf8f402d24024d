#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

#include "linkboy/export.hpp"

namespace linkboy {

/// While it exists, operations of this thread run in the precision of an Accelerator. Scopes can be
/// nested. Casts of the parameters are kept until the outermost scope ends.
class [[nodiscard]] LINKBOY_API AutocastScope {
 public:
  /// @param dtype  The precision. If not set, the scope changes nothing.
  AutocastScope(c10::DeviceType device, std::optional<c10::ScalarType> dtype);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_;
  bool is_active_;
  bool was_enabled_ = false;
  c10::ScalarType old_dtype_ = c10::ScalarType::Float;
};

}  // namespace linkboy
