#include "precision/cuda_graph.hpp"

#include <ATen/cuda/CUDAGraph.h>

namespace linkboy {
namespace {

class LibTorchsGraph : public CudaGraph {
 public:
  void begin_capture() override { graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal); }
  void end_capture() override { graph_.capture_end(); }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<CudaGraph> make_cuda_graph() { return std::make_unique<LibTorchsGraph>(); }

}  // namespace linkboy
