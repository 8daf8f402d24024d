#pragma once

#include <ATen/record_function.h>

#include <optional>

#include "linkboy/export.hpp"

namespace linkboy {

/// Labels the work of the current thread in a scope for profilers. A trace of LibTorch's profiler
/// shows the range as a user annotation. NVIDIA's tools show it as an NVTX range if
/// `set_nvtx_ranges` has enabled them.
///
///     const ProfilerRange range("forward");
///
/// Costs a few nanoseconds if no profiler is active.
class LINKBOY_API ProfilerRange {
 public:
  /// @param name  Copied only if a profiler is active.
  explicit ProfilerRange(const char* name);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  // Constructed only if a profiler is active: an idle RecordFunction costs twice as much as the
  // check.
  std::optional<at::RecordFunction> record_;
  bool has_nvtx_range_ = false;
};

/// Sets whether ranges that begin from now on are also NVTX ranges, in all threads. Does nothing if
/// LibTorch was built without CUDA. Thread-safe.
LINKBOY_API void set_nvtx_ranges(bool enabled);

/// Whether new ranges are also NVTX ranges.
LINKBOY_API bool nvtx_ranges();

}  // namespace linkboy
