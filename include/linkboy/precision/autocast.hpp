#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>

#include "linkboy/export.hpp"

namespace linkboy {

/// While an object of this class exists, autocast is enabled on this thread. Scopes can be nested.
/// By default, casts of parameters are cached until the outermost scope ends.
class [[nodiscard]] LINKBOY_API AutocastScope {
 public:
  /// @param dtype  The lower precision, float16 or bfloat16. If not set, the scope has no effect.
  /// @param caches  Whether casts of parameters are cached. A cached cast occupies memory, and is
  ///        out of date if the parameter changes within the scope.
  AutocastScope(c10::DeviceType device, std::optional<c10::ScalarType> dtype, bool caches = true);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_;
  bool is_active_;
  bool was_enabled_ = false;
  bool was_caching_ = true;
  c10::ScalarType old_dtype_ = c10::ScalarType::Float;
};

}  // namespace linkboy
