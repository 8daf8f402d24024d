// The memory use of this process, in MiB.

#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "linkboy/export.hpp"

namespace linkboy {

/// Returns the resident memory of the process in MiB, including shared libraries. Returns NaN if
/// the system does not report it, for example in a container without /proc.
LINKBOY_API double resident_mib();

/// Returns the largest value of `resident_mib` since the process began.
LINKBOY_API double peak_resident_mib();

/// The peak use of a device's memory since the process began or `reset_device_peak` was called.
struct DevicePeak {
  /// The memory of tensors, as in Python's `torch.cuda.max_memory_allocated`.
  double allocated_mib = 0.0;
  /// The memory that LibTorch kept for tensors, as in `torch.cuda.max_memory_reserved`. It does not
  /// include the driver's own memory.
  double reserved_mib = 0.0;
};

/// Returns the peak memory use of `device`; nullopt for the CPU, and before any memory was
/// allocated on a CUDA device. Does not wait for the device.
LINKBOY_API std::optional<DevicePeak> device_peak(c10::Device device);

/// Resets the peak to the memory currently in use, for the entire process.
LINKBOY_API void reset_device_peak(c10::Device device);

/// Releases the device memory that LibTorch caches for future tensors. Waits for the device.
LINKBOY_API void empty_device_cache(c10::Device device);

}  // namespace linkboy
