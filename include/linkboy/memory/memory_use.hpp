// How much memory this process has, in MiB.

#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "linkboy/export.hpp"

namespace linkboy {

/// In main memory now, shared libraries included. NaN where the system does not tell (a container
/// without /proc).
LINKBOY_API double resident_mib();

/// The most that `resident_mib` has been since the process began.
LINKBOY_API double peak_resident_mib();

/// The highest use since the process began or `reset_device_peak` was called.
struct DevicePeak {
  /// What tensors took, as Python's `torch.cuda.max_memory_allocated`.
  double allocated_mib = 0.0;
  /// What LibTorch kept for them, as `torch.cuda.max_memory_reserved`. The driver's own share comes
  /// on top.
  double reserved_mib = 0.0;
};

/// Nothing on the CPU, or before anything was allocated on a CUDA device. Does not wait for the
/// device.
LINKBOY_API std::optional<DevicePeak> device_peak(c10::Device device);

/// Resets the peak to the memory that is in use now, for the whole process.
LINKBOY_API void reset_device_peak(c10::Device device);

/// Gives back to the system what LibTorch keeps on the device for tensors to come. Waits for the
/// device.
LINKBOY_API void empty_device_cache(c10::Device device);

}  // namespace linkboy
