#pragma once

#include <ATen/record_function.h>

#include <optional>

#include "linkboy/export.hpp"

namespace linkboy {

/// Names what the present thread does within a scope, for whoever watches: a trace of LibTorch's
/// profiler shows it as a user annotation, and NVIDIA's tools as an NVTX range if `set_nvtx_ranges`
/// has switched these on.
///
///     const ProfilerRange range("forward");
///
/// Costs some nanoseconds when nobody watches.
class LINKBOY_API ProfilerRange {
 public:
  /// @param name  Copied only if somebody watches.
  explicit ProfilerRange(const char* name);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  // Made only for a profiler: an idle RecordFunction costs twice as much as asking for one.
  std::optional<at::RecordFunction> record_;
  bool has_nvtx_range_ = false;
};

/// Whether ranges that are opened from now on are NVTX ranges too, in all threads. Does nothing
/// where LibTorch was built without CUDA. Any thread may call it.
LINKBOY_API void set_nvtx_ranges(bool enabled);

/// Whether they are.
LINKBOY_API bool nvtx_ranges();

}  // namespace linkboy
