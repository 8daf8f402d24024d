// Connects the simulated machine of tests/simulated_cuda to LibTorch through PrivateUse1, the
// interface for custom backends. Does not need CUDA.
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

/// Throws c10::Error if a kernel has failed.
void check(Status status);

// Devices and streams. The current ones are those of the calling thread.

c10::DeviceIndex current_device();
/// Returns `device`, with the current index if it does not have an index.
c10::Device with_index(c10::Device device);
c10::Stream current_stream_of(c10::DeviceIndex device);
Stream& stream_of(const c10::Stream& stream);
std::shared_ptr<Event> record_event(Stream& stream);

// Memory

/// Returns the allocator for devices. It keeps freed memory for the stream for which the memory was
/// allocated. If other streams were recorded for the memory, it is reused only after their work.
c10::Allocator& device_allocator();
void record_stream(const c10::DataPtr& memory, c10::Stream stream);
/// Changes the size of a storage. Keeps the contents as far as they fit.
void resize_storage(c10::StorageImpl& storage, std::size_t size);

/// Keeps page-locked memory until the work that is queued on `stream` so far is done.
void record_page_locked(const c10::Storage& storage, c10::Stream stream);
/// Registers the allocators for device memory and page-locked memory.
void register_allocators();

// Random numbers

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

}  // namespace linkboy::simulated_device
