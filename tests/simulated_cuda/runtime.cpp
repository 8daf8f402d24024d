// The functions of libcudart that LibTorch calls, implemented with the simulated machine: devices,
// errors, memory, streams, events and graphs. Because this library is preloaded, they replace those
// of the real library.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "runtime_state.hpp"

namespace linkboy::simulated_cuda {
namespace {

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

bool is_device(int device) { return device >= 0 && device < machine().num_devices(); }

/// Returns an error if a capture forbids calls that could wait.
cudaError_t refused_while_capturing() { return remember(machine().may_wait()); }

}  // namespace

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t remember(Status status) { return remember(static_cast<cudaError_t>(status)); }

Stream& stream_of(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    return machine().default_stream(current_device);
  }
  return *handle->stream;
}

}  // namespace linkboy::simulated_cuda

using namespace linkboy::simulated_cuda;

static_assert(static_cast<int>(CaptureMode::global) == cudaStreamCaptureModeGlobal &&
              static_cast<int>(CaptureMode::one_thread) == cudaStreamCaptureModeThreadLocal &&
              static_cast<int>(CaptureMode::relaxed) == cudaStreamCaptureModeRelaxed);

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
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->pciBusID = device + 1;
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

const char* cudaGetErrorName(cudaError_t) { return "a simulated error"; }

const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  text = "simulated; number " + std::to_string(error) + " of CUDA's errors";
  return text.c_str();
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

// A copy to pageable host memory makes the host wait, and a copy from pageable host memory reads it
// immediately, like CUDA's.
cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t size, cudaMemcpyKind,
                            cudaStream_t handle) {
  if (size == 0) return cudaSuccess;
  Stream& stream = stream_of(handle);
  const bool to_device = machine().device_of(target).has_value();
  const bool from_device = machine().device_of(source).has_value();
  const bool is_source_staged = !from_device && !machine().is_page_locked(source);
  const bool is_target_pageable = !to_device && !machine().is_page_locked(target);
  if (is_source_staged || is_target_pageable) {
    if (const auto error = remember(machine().refuse_in_capture(stream))) return error;
    machine().count(&Counts::pageable);
  }

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
  if (!is_target_pageable) work.writes.emplace_back(target, size);
  if (is_source_staged) {
    work.run = [to, staged = std::string(from, size)] {
      std::memcpy(to, staged.data(), staged.size());
    };
  } else {
    work.reads.emplace_back(source, size);
    work.run = [to, from, size] { std::memmove(to, from, size); };
  }
  machine().launch(stream, std::move(work));
  return is_target_pageable ? remember(machine().wait(stream)) : cudaSuccess;
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

// Streams

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  int device = 0;
  cudaGetDevice(&device);
  machine().use(device);
  *stream = new CUstream_st{&machine().make_stream(device)};
  return cudaSuccess;
}

// Deletes only the handle, because work of the stream may still run and events may refer to it.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return remember(machine().wait(stream_of(stream)));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return remember(machine().query(stream_of(stream)));
}

// Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return remember(machine().record(event->event, stream_of(stream)));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) { return remember(machine().query(event->event)); }

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return remember(machine().wait(event->event));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return remember(machine().make_wait(stream_of(stream), event->event));
}

// Graphs

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const auto capture = machine().capture_of(stream_of(stream));
  *status = !capture              ? cudaStreamCaptureStatusNone
            : capture->is_invalid ? cudaStreamCaptureStatusInvalidated
                                  : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges,
                                     std::size_t* num_dependencies) {
  const auto capture = machine().capture_of(stream_of(stream));
  if (id != nullptr) *id = capture ? capture->id : 0;
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (num_dependencies != nullptr) *num_dependencies = 0;
  return cudaStreamIsCapturing(stream, status);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  const auto before = machine().exchange_mode(static_cast<CaptureMode>(*mode));
  *mode = static_cast<cudaStreamCaptureMode>(before);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return remember(machine().begin_capture(stream_of(stream), static_cast<CaptureMode>(mode)));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  auto captured = std::make_unique<CUgraph_st>();
  const Status status = machine().end_capture(stream_of(stream), captured->graph);
  *graph = status == Status::ok ? captured.release() : nullptr;
  return remember(status);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long) {
  *executable = new CUgraphExec_st{std::make_shared<const Graph>(graph->graph)};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  machine().launch(stream_of(stream), executable->graph);
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, std::size_t* count) {
  *count = graph->graph.nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

}  // extern "C"
