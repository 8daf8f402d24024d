// The simulated machine of tests/simulated_cuda as LibTorch sees it through the interface for
// backends of one's own, PrivateUse1. No CUDA is needed for it.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include "simulated_cuda/hardware.hpp"

namespace linkboy::simulated_device {

using simulated_cuda::Counts;
using simulated_cuda::Event;
using simulated_cuda::Machine;
using simulated_cuda::Range;
using simulated_cuda::Status;
using simulated_cuda::Stream;
using simulated_cuda::Work;

constexpr auto kType = c10::DeviceType::PrivateUse1;

inline Machine& machine() { return Machine::instance(); }

/// Throws if a kernel has failed.
void check(Status status);

// Devices and streams; of this thread, where they are current.

c10::DeviceIndex current_device();
/// `device`, with the current index if it lacks one.
c10::Device with_index(c10::Device device);
c10::Stream current_stream_of(c10::DeviceIndex device);
Stream& stream_of(const c10::Stream& stream);
std::shared_ptr<Event> record_event(Stream& stream);

// Memory

/// Gives freed memory again to the stream that had it, and to others after all work on it.
c10::Allocator& device_allocator();
void record_stream(const c10::DataPtr& memory, c10::Stream stream);
/// Its contents stay, as far as they fit.
void resize_storage(c10::StorageImpl& storage, std::size_t size);

/// Has page-locked memory that was read or written on `stream` stay until then.
void record_page_locked(const c10::Storage& storage, c10::Stream stream);
/// Registers both allocators.
void register_allocators();

// Random numbers

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

}  // namespace linkboy::simulated_device
