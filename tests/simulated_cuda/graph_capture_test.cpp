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

struct GraphCaptureTest : SimulationTest {
  /// Calls `work` during a capture of the first stream. Returns the result of its end.
  cudaError_t capture(const std::function<void()>& work,
                      cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    expect_ok(cudaStreamBeginCapture(first_, mode));
    work();
    const auto error = cudaStreamEndCapture(first_, &graph_);
    EXPECT_EQ(cudaGetLastError(), error);
    return error;
  }
  cudaGraph_t graph_ = nullptr;
};

TEST_F(GraphCaptureTest, AGraphRunsOnlyWhenItIsLaunched) {
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

TEST_F(GraphCaptureTest, AGraphCanRaceWithWorkOfAnotherStream) {
  cudaGraphExec_t executable = nullptr;
  expect_ok(capture([&] { write(first_); }));
  expect_ok(cudaGraphInstantiateWithFlags(&executable, graph_, 0));
  read(second_);
  EXPECT_THAT(races_.take(), IsEmpty());
  expect_ok(cudaGraphLaunch(executable, first_));
  EXPECT_THAT(races_.take(), HasSubstr("nothing orders the two"));
  expect_ok(cudaGraphExecDestroy(executable));
  expect_ok(cudaGraphDestroy(graph_));
}

TEST_F(GraphCaptureTest, BranchesOfAGraphCanRace) {
  for (const bool is_ordered : {true, false}) {
    expect_ok(capture([&] {
      if (is_ordered) write(first_);
      record(first_);
      wait(second_);
      if (!is_ordered) write(first_);
      write(second_);
      record(second_);
      wait(first_);
    }));
    EXPECT_EQ(races_.take().empty(), is_ordered);
    expect_ok(cudaGraphDestroy(graph_));
  }
}

TEST_F(GraphCaptureTest, ABranchThatDoesNotJoinIsAnError) {
  EXPECT_EQ(capture([&] {
              record(first_);
              wait(second_);
              write(second_);
            }),
            cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph_, nullptr);
}

TEST_F(GraphCaptureTest, AForbiddenCallInvalidatesTheCapture) {
  write(second_);
  record(second_);
  const std::vector<std::pair<cudaError_t, std::function<cudaError_t()>>> calls{
      {cudaErrorStreamCaptureIsolation, [&] { return cudaStreamWaitEvent(first_, event_, 0); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(first_); }},
      {cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamQuery(first_); }},
      {cudaErrorStreamCaptureUnsupported, [] { return cudaDeviceSynchronize(); }},
      {cudaErrorStreamCaptureUnsupported,
       [] {
         void* more = nullptr;
         return cudaMalloc(&more, kSize);
       }},
      {cudaErrorStreamCaptureUnsupported, [&] {
         char on_host[kSize];
         return cudaMemcpyAsync(on_host, memory_, kSize, cudaMemcpyDeviceToHost, first_);
       }}};
  for (const auto& [error, call] : calls) {
    EXPECT_EQ(capture([&, error = error, &call = call] { EXPECT_EQ(call(), error); }),
              cudaErrorStreamCaptureInvalidated);
  }
}

TEST_F(GraphCaptureTest, AnotherThreadCanAllocateUnlessTheCaptureIsGlobal) {
  const auto allocate = [](cudaError_t expected) {
    std::thread([&] {
      void* more = nullptr;
      EXPECT_EQ(cudaMalloc(&more, kSize), expected);
      if (expected == cudaSuccess) cudaFree(more);
    }).join();
  };
  expect_ok(capture([&] { allocate(cudaSuccess); }));
  EXPECT_EQ(
      capture([&] { allocate(cudaErrorStreamCaptureUnsupported); }, cudaStreamCaptureModeGlobal),
      cudaErrorStreamCaptureInvalidated);
}

}  // namespace
}  // namespace linkboy::simulated_cuda::testing
