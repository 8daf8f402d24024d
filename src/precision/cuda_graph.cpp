#include "precision/cuda_graph.hpp"

#include <ATen/cuda/CUDAGraph.h>

namespace linkboy {
namespace {

class LibTorchsGraph : public CudaGraph {
 public:
  explicit LibTorchsGraph(at::cuda::MempoolId_t pool) : pool_(pool) {}
  void begin_capture() override { graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal); }
  void end_capture() override { graph_.capture_end(); }
  void replay() override { graph_.replay(); }
  at::cuda::MempoolId_t pool() { return graph_.pool(); }

 private:
  at::cuda::MempoolId_t pool_;  // {0, 0} makes a new one
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<CudaGraph> make_cuda_graph(CudaGraph* neighbour) {
  auto* graph = static_cast<LibTorchsGraph*>(neighbour);
  return std::make_unique<LibTorchsGraph>(graph ? graph->pool() : at::cuda::MempoolId_t{0, 0});
}

}  // namespace linkboy
