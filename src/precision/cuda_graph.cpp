// Captures and replays work with LibTorch's CUDAGraph, which only LibTorch with CUDA contains.

#include "precision/cuda_graph.hpp"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <mutex>

namespace linkboy {
namespace {

class LibTorchsGraph : public CudaGraph {
 public:
  explicit LibTorchsGraph(at::cuda::MempoolId_t pool) : pool_(pool) {}

  void begin_capture() override {
    device_ = c10::cuda::current_device();
    graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
  }

  void end_capture() override {
    try {
      graph_.capture_end();
    } catch (...) {
      end_what_libtorch_leaves_open();
      throw;
    }
  }

  void replay() override { graph_.replay(); }
  at::cuda::MempoolId_t pool() const { return pool_; }

 private:
  /// If the driver rejects the capture, LibTorch's allocator and generator still count as
  /// capturing. Ends both captures.
  void end_what_libtorch_leaves_open() {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool_);
    c10::cuda::CUDACachingAllocator::releasePool(device_, pool_);
    at::Generator generator =
        at::globalContext().defaultGenerator(c10::Device(c10::kCUDA, device_));
    const std::lock_guard lock(generator.mutex());
    generator.graphsafe_set_state(generator.clone());
  }

  at::cuda::MempoolId_t pool_;
  c10::DeviceIndex device_ = 0;
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<CudaGraph> make_cuda_graph(CudaGraph* neighbour) {
  auto* graph = static_cast<LibTorchsGraph*>(neighbour);
  return std::make_unique<LibTorchsGraph>(graph ? graph->pool() : at::cuda::graph_pool_handle());
}

}  // namespace linkboy
