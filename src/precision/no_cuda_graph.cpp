// Replaces cuda_graph.cpp if LibTorch was built without CUDA.

#include "linkboy/error.hpp"
#include "precision/cuda_graph.hpp"

namespace linkboy {

std::unique_ptr<CudaGraph> make_cuda_graph(CudaGraph*) {
  throw Error(
      "cannot record a CUDA graph: linkboy was built with a LibTorch without CUDA. Train with "
      "ExecutionMode::eager.");
}

}  // namespace linkboy
