// Tests of captured graphs.

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "simulated_cuda/simulation.hpp"
#include "simulated_cuda/simulation_fixture.hpp"

namespace linkboy::simulated_cuda::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(SimulationTest, AGraphRunsOnlyWhenItIsLaunched) {
  auto tensor = torch::zeros({3}, torch::kCUDA);
  torch::cuda::synchronize();
  at::cuda::CUDAGraph graph;
  {
    const c10::cuda::CUDAStreamGuard on_side(c10::cuda::getStreamFromPool());
    graph.capture_begin();
    tensor.add_(1);
    graph.capture_end();
  }
  EXPECT_EQ(tensor[0].item<float>(), 0.0F);
  const Counts before = counts();
  graph.replay();
  graph.replay();
  EXPECT_EQ(counts().graphs - before.graphs, 2);
  EXPECT_EQ(tensor[0].item<float>(), 2.0F);
}

TEST_F(SimulationTest, AGraphCanRaceWithWorkOfAnotherStream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  expect_ok(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal));
  write(first_);
  expect_ok(cudaStreamEndCapture(first_, &graph));
  expect_ok(cudaGraphInstantiate(&executable, graph, 0));
  read(second_);
  EXPECT_THAT(races_.take(), IsEmpty());
  expect_ok(cudaGraphLaunch(executable, first_));
  EXPECT_THAT(races_.take(), HasSubstr("nothing orders the two"));
  expect_ok(cudaGraphExecDestroy(executable));
  expect_ok(cudaGraphDestroy(graph));
}

TEST_F(SimulationTest, BranchesOfAGraphCanRace) {
  for (const bool is_ordered : {true, false}) {
    cudaGraph_t graph = nullptr;
    expect_ok(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal));
    if (is_ordered) write(first_);
    record(first_);
    wait(second_);
    if (!is_ordered) write(first_);
    write(second_);
    record(second_);
    wait(first_);
    expect_ok(cudaStreamEndCapture(first_, &graph));
    EXPECT_EQ(races_.take().empty(), is_ordered);
    expect_ok(cudaGraphDestroy(graph));
  }
}

TEST_F(SimulationTest, ABranchThatDoesNotJoinIsAnError) {
  cudaGraph_t graph = nullptr;
  expect_ok(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal));
  record(first_);
  wait(second_);
  write(second_);
  EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureUnjoined);
}

TEST_F(SimulationTest, ACaptureIsIndependentOfOutsideWork) {
  cudaGraph_t graph = nullptr;
  write(second_);
  record(second_);
  expect_ok(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(cudaStreamWaitEvent(first_, event_, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
}

TEST_F(SimulationTest, TheHostCannotWaitDuringACapture) {
  const std::vector<std::function<cudaError_t()>> calls{
      [&] { return cudaStreamSynchronize(first_); }, [&] { return cudaStreamQuery(first_); },
      [&] { return cudaDeviceSynchronize(); },
      [&] {
        void* more = nullptr;
        return cudaMalloc(&more, kSize);
      },
      [&] {
        char on_host[kSize];
        return cudaMemcpyAsync(on_host, memory_, kSize, cudaMemcpyDeviceToHost, first_);
      }};
  for (const auto& call : calls) {
    cudaGraph_t graph = nullptr;
    expect_ok(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal));
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
  }
}

TEST_F(SimulationTest, AnotherThreadCanAllocateUnlessTheCaptureIsGlobal) {
  for (const auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal}) {
    cudaGraph_t graph = nullptr;
    expect_ok(cudaStreamBeginCapture(first_, mode));
    cudaError_t error = cudaSuccess;
    std::thread([&] {
      void* more = nullptr;
      error = cudaMalloc(&more, kSize);
      if (error == cudaSuccess) cudaFree(more);
    }).join();
    const bool is_global = mode == cudaStreamCaptureModeGlobal;
    EXPECT_EQ(error, is_global ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
    EXPECT_EQ(cudaStreamEndCapture(first_, &graph),
              is_global ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    cudaGetLastError();
  }
}

}  // namespace
}  // namespace linkboy::simulated_cuda::testing
