// The functions of libcudart that LibTorch calls, implemented with the simulated machine: devices,
// errors and memory. Because this library is preloaded, they replace those of the real library.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "runtime_state.hpp"

namespace linkboy::simulated_cuda {
namespace {

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

bool is_device(int device) { return device >= 0 && device < machine().num_devices(); }

cudaError_t error_of(Status status) {
  switch (status) {
    case Status::ok:
      return cudaSuccess;
    case Status::not_ready:
      return cudaErrorNotReady;
    case Status::kernel_failed:
      return cudaErrorAssert;
    case Status::capture_unsupported:
      return cudaErrorStreamCaptureUnsupported;
    case Status::capture_invalidated:
      return cudaErrorStreamCaptureInvalidated;
    case Status::capture_merges:
      return cudaErrorStreamCaptureMerge;
    case Status::capture_unmatched:
      return cudaErrorStreamCaptureUnmatched;
    case Status::capture_unjoined:
      return cudaErrorStreamCaptureUnjoined;
    case Status::capture_isolation:
      return cudaErrorStreamCaptureIsolation;
    case Status::capture_wrong_thread:
      return cudaErrorStreamCaptureWrongThread;
    case Status::captured_event:
      return cudaErrorCapturedEvent;
    case Status::illegal_state:
      return cudaErrorIllegalState;
  }
  return cudaErrorUnknown;
}

/// Copies `rows` rows of `width` bytes. As with CUDA, the host waits only if the target is host
/// memory that is not page-locked. If the source is host memory that is not page-locked, it is read
/// immediately.
cudaError_t copy(void* target, std::size_t target_pitch, const void* source,
                 std::size_t source_pitch, std::size_t width, std::size_t rows, Stream& stream) {
  if (width * rows == 0) return cudaSuccess;
  const bool to_device = machine().device_of(target).has_value();
  const bool from_device = machine().device_of(source).has_value();
  const bool is_source_staged = !from_device && !machine().is_page_locked(source);
  const bool is_target_pageable = !to_device && !machine().is_page_locked(target);
  if (is_source_staged || is_target_pageable) {
    if (const Status refused = machine().refuse_in_capture(stream); refused != Status::ok) {
      return remember(refused);
    }
    machine().count(&Counts::pageable);
  }

  const std::size_t source_size = source_pitch * (rows - 1) + width;
  const std::size_t target_size = target_pitch * (rows - 1) + width;
  Work work{.name = "a copy to the host", .reads = {}, .writes = {}, .run = {}};
  if (to_device) {
    work.name = from_device ? "a copy within the devices" : "a copy to the device";
    machine().count(from_device ? &Counts::device_to_device : &Counts::host_to_device);
    if (!from_device && machine().has_work_beside(stream)) {
      machine().count(&Counts::overlapping_host_to_device);
    }
  } else {
    machine().count(&Counts::device_to_host);
  }
  auto* to = static_cast<char*>(machine().bytes_of(target));
  const auto* from = static_cast<const char*>(machine().bytes_of(source));
  std::shared_ptr<std::vector<char>> staged;
  if (is_source_staged) {
    staged = std::make_shared<std::vector<char>>(from, from + source_size);
    from = staged->data();
  } else {
    work.reads.emplace_back(source, source_size);
  }
  if (!is_target_pageable) work.writes.emplace_back(target, target_size);
  work.run = [=] {
    for (std::size_t row = 0; row < rows; ++row) {
      std::memmove(to + row * target_pitch, from + row * source_pitch, width);
    }
    static_cast<void>(staged);
  };
  machine().launch(stream, std::move(work));
  return is_target_pageable ? remember(machine().wait(stream)) : cudaSuccess;
}

/// Returns an error if a capture forbids calls that could wait.
cudaError_t refused_while_capturing() { return remember(machine().may_wait()); }

}  // namespace

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t remember(Status status) { return remember(error_of(status)); }

Stream& stream_of(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    return machine().default_stream(current_device);
  }
  return *handle->stream;
}

}  // namespace linkboy::simulated_cuda

using namespace linkboy::simulated_cuda;

extern "C" {

// Devices

cudaError_t cudaGetDeviceCount(int* count) {
  *count = machine().num_devices();
  return *count > 0 ? cudaSuccess : remember(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return remember(cudaErrorInvalidDevice);
  current_device = device;
  machine().use(device);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) return remember(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "Simulated CUDA device");
  properties->totalGlobalMem = machine().memory(device).capacity();
  properties->major = 9;
  properties->warpSize = 32;
  properties->multiProcessorCount = 132;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->sharedMemPerMultiprocessor = 228 << 10;
  properties->regsPerBlock = 65536;
  properties->regsPerMultiprocessor = 65536;
  std::fill_n(properties->maxThreadsDim, 3, 1024);
  std::fill_n(properties->maxGridSize, 3, 65535);
  properties->l2CacheSize = 50 << 20;
  properties->concurrentKernels = 1;
  properties->unifiedAddressing = 1;
  properties->asyncEngineCount = 2;
  properties->pciBusID = device + 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (const auto error = cudaGetDeviceProperties(&properties, device)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<std::size_t>(size), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaDeviceSynchronize() {
  machine().use(current_device);
  machine().count(&Counts::device_waits);
  return remember(machine().wait_for_device(current_device));
}

// Errors

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t) { return "a simulated error"; }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorAssert:
      return "device-side assert triggered";
    case cudaErrorIllegalState:
      return "the operation cannot be performed in the present state";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureMerge:
      return "operation would result in a merge of separate capture sequences";
    case cudaErrorStreamCaptureUnmatched:
      return "capture was not ended in the same stream as it began";
    case cudaErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    case cudaErrorStreamCaptureWrongThread:
      return "attempt to terminate a thread-local capture sequence from another thread";
    case cudaErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
    default:
      return "an error that is not simulated";
  }
}

// Memory

cudaError_t cudaMalloc(void** pointer, std::size_t size) {
  if (const auto error = refused_while_capturing()) return error;
  machine().use(current_device);
  *pointer = machine().memory(current_device).allocate(size);
  return *pointer != nullptr ? cudaSuccess : remember(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* pointer) {
  if (const auto error = refused_while_capturing()) return error;
  if (pointer == nullptr) return cudaSuccess;
  const auto device = machine().device_of(pointer);
  const bool is_freed = device && machine().release(*device, pointer);
  return is_freed ? cudaSuccess : remember(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const DeviceMemory& memory = machine().memory(current_device);
  *free = memory.num_free();
  *total = memory.capacity();
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t size, unsigned) {
  if (const auto error = refused_while_capturing()) return error;
  machine().use(current_device);
  constexpr std::size_t kPage = 4096;
  *pointer = std::aligned_alloc(kPage, (size + kPage - 1) / kPage * kPage);
  if (*pointer == nullptr) return remember(cudaErrorMemoryAllocation);
  machine().lock_pages(*pointer, size);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  if (const auto error = refused_while_capturing()) return error;
  for (int i = 0; i < machine().num_devices(); ++i) machine().wait_for_device(i);
  machine().unlock_pages(pointer);
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, std::size_t size, unsigned) {
  if (const auto error = refused_while_capturing()) return error;
  machine().lock_pages(pointer, size);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  if (const auto error = refused_while_capturing()) return error;
  machine().unlock_pages(pointer);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  const auto device = machine().device_of(pointer);
  attributes->device = device.value_or(current_device);
  if (device) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = const_cast<void*>(pointer);
  } else {
    attributes->type =
        machine().is_page_locked(pointer) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    attributes->hostPointer = const_cast<void*>(pointer);
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t size, cudaMemcpyKind,
                            cudaStream_t stream) {
  return copy(target, size, source, size, size, 1, stream_of(stream));
}

cudaError_t cudaMemcpy(void* target, const void* source, std::size_t size, cudaMemcpyKind kind) {
  if (const auto error = refused_while_capturing()) return error;
  if (const auto error = cudaMemcpyAsync(target, source, size, kind, nullptr)) return error;
  return remember(machine().wait(stream_of(nullptr)));
}

cudaError_t cudaMemcpyPeerAsync(void* target, int, const void* source, int, std::size_t size,
                                cudaStream_t stream) {
  return cudaMemcpyAsync(target, source, size, cudaMemcpyDefault, stream);
}

cudaError_t cudaMemcpy2DAsync(void* target, std::size_t target_pitch, const void* source,
                              std::size_t source_pitch, std::size_t width, std::size_t rows,
                              cudaMemcpyKind, cudaStream_t stream) {
  return copy(target, target_pitch, source, source_pitch, width, rows, stream_of(stream));
}

cudaError_t cudaMemsetAsync(void* target, int value, std::size_t size, cudaStream_t stream) {
  machine().count(&Counts::kernels);
  machine().launch(stream_of(stream), {.name = "a memset",
                                       .reads = {},
                                       .writes = {{target, size}},
                                       .run = [to = machine().bytes_of(target), value, size] {
                                         std::memset(to, value, size);
                                       }});
  return cudaSuccess;
}

cudaError_t cudaMemset(void* target, int value, std::size_t size) {
  return cudaMemsetAsync(target, value, size, nullptr);
}

}  // extern "C"
