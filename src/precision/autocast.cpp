// Enables autocast within a scope, and clears its cached casts at the end of the outermost one.

#include "linkboy/precision/autocast.hpp"

#include <ATen/autocast_mode.h>

namespace linkboy {

AutocastScope::AutocastScope(c10::DeviceType device, std::optional<c10::ScalarType> dtype,
                             bool caches)
    : device_(device), is_active_(dtype.has_value()) {
  if (!is_active_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(device_);
  was_caching_ = at::autocast::is_autocast_cache_enabled();
  old_dtype_ = at::autocast::get_autocast_dtype(device_);
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, *dtype);
  if (!caches) at::autocast::set_autocast_cache_enabled(false);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!is_active_) return;
  // Clears the cache once per step; otherwise, it would contain casts of the parameters before
  // their update.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, old_dtype_);
  at::autocast::set_autocast_cache_enabled(was_caching_);
}

}  // namespace linkboy
