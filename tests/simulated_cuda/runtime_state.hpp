#pragma once

#include <cuda_runtime_api.h>

#include "hardware.hpp"

// The types behind CUDA's handles.
struct CUstream_st {
  linkboy::simulated_cuda::Stream* stream;
};
struct CUevent_st {
  linkboy::simulated_cuda::Event event;
};
struct CUgraph_st {
  linkboy::simulated_cuda::Graph graph;
};
struct CUgraphExec_st {
  std::shared_ptr<const linkboy::simulated_cuda::Graph> graph;
};

namespace linkboy::simulated_cuda {

inline Machine& machine() { return Machine::instance(); }

/// Returns `error`, and makes it the last error of the thread unless it is cudaSuccess.
cudaError_t remember(cudaError_t error);
cudaError_t remember(Status status);

/// Returns the stream of a handle. A null handle means the default stream of the current device.
Stream& stream_of(cudaStream_t handle);

}  // namespace linkboy::simulated_cuda
