#pragma once

#include <memory>

namespace linkboy {

/// Work of the current CUDA stream, recorded once and replayed.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;
  /// What this thread launches from now on is recorded and not run. Other threads are free to ask
  /// for page-locked memory.
  virtual void begin_capture() = 0;
  virtual void end_capture() = 0;
  virtual void replay() = 0;
};

/// @throws Error if LibTorch was built without CUDA.
std::unique_ptr<CudaGraph> make_cuda_graph();

}  // namespace linkboy
