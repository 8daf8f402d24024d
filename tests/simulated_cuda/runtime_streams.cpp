// The functions of libcudart that LibTorch calls, implemented with the simulated machine: streams,
// events and graphs.

#include <cuda_runtime_api.h>

#include <memory>

#include "runtime_state.hpp"

using namespace linkboy::simulated_cuda;

static_assert(static_cast<int>(CaptureMode::global) == cudaStreamCaptureModeGlobal &&
              static_cast<int>(CaptureMode::one_thread) == cudaStreamCaptureModeThreadLocal &&
              static_cast<int>(CaptureMode::relaxed) == cudaStreamCaptureModeRelaxed);

extern "C" {

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

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
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
