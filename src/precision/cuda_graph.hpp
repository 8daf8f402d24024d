#pragma once

#include <memory>

namespace linkboy {

/// Work of the current CUDA stream that is recorded once and replayed.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;
  /// Starts recording. Work that this thread launches is recorded and does not run. Other threads
  /// can still allocate page-locked memory.
  virtual void begin_capture() = 0;
  virtual void end_capture() = 0;
  virtual void replay() = 0;
};

/// @param neighbour  If not null, a recorded graph that this function returned. The two graphs
///        share one memory pool: their replays must not overlap, and each can overwrite the other's
///        memory except for tensors that are still referenced.
/// @throws Error if LibTorch was built without CUDA.
std::unique_ptr<CudaGraph> make_cuda_graph(CudaGraph* neighbour);

}  // namespace linkboy
