#pragma once

#include <cuda_runtime_api.h>

#include "hardware.hpp"

// CUDA's handles, as the runtime's functions have them.
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

/// Makes `error` the thread's last error, unless it is success, and returns it.
cudaError_t remember(cudaError_t error);
cudaError_t remember(Status status);

/// The stream of a handle; null means the current device's default stream.
Stream& stream_of(cudaStream_t handle);

}  // namespace linkboy::simulated_cuda
