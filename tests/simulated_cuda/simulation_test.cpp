// Makes each fault on purpose that the simulation is there to see, and the same without the fault.

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <csignal>
#include <limits>
#include <thread>

#include "simulated_cuda/simulation.hpp"

namespace linkboy::simulated_cuda::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kSize = 1024;

void expect_ok(cudaError_t error) { EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

/// Two streams, an event, device memory, and what is reported meanwhile.
class SimulationTest : public ::testing::Test {
 protected:
  SimulationTest() {
    expect_ok(cudaStreamCreateWithPriority(&first_, cudaStreamNonBlocking, 0));
    expect_ok(cudaStreamCreateWithPriority(&second_, cudaStreamNonBlocking, 0));
    expect_ok(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    expect_ok(cudaMalloc(&memory_, kSize));
    expect_ok(cudaMalloc(&other_memory_, kSize));
  }
  ~SimulationTest() override {
    expect_ok(cudaFree(memory_));
    expect_ok(cudaFree(other_memory_));
    expect_ok(cudaEventDestroy(event_));
    for (cudaStream_t stream : {first_, second_}) expect_ok(cudaStreamDestroy(stream));
  }

  void write(cudaStream_t stream) { expect_ok(cudaMemsetAsync(memory_, 1, kSize, stream)); }
  void read(cudaStream_t stream) { copy(other_memory_, memory_, kSize, stream); }
  static void copy(void* target, const void* source, std::size_t size, cudaStream_t stream) {
    expect_ok(cudaMemcpyAsync(target, source, size, cudaMemcpyDefault, stream));
  }
  void record(cudaStream_t stream) { expect_ok(cudaEventRecord(event_, stream)); }
  void wait(cudaStream_t stream) { expect_ok(cudaStreamWaitEvent(stream, event_, 0)); }

  RacesAreReported races_{};
  cudaStream_t first_ = nullptr;
  cudaStream_t second_ = nullptr;
  cudaEvent_t event_ = nullptr;
  void* memory_ = nullptr;
  void* other_memory_ = nullptr;
};

// ---- Races between streams

TEST_F(SimulationTest, TwoWritesThatNothingOrdersAreARace) {
  const auto before = counts().races;
  write(first_);
  write(second_);
  EXPECT_THAT(races_.take(), ::testing::MatchesRegex(
                                 "a memset on stream .* of device 0 writes memory that a memset "
                                 "on stream .* of device 0 writes, and nothing orders the "
                                 "two\n"));
  EXPECT_EQ(counts().races, before + 1);
}

TEST_F(SimulationTest, AReadIsInARaceWithAWriteBeforeIt) {
  write(first_);
  read(second_);
  EXPECT_THAT(races_.take(),
              AllOf(HasSubstr("a copy within the devices"), HasSubstr("reads memory"),
                    HasSubstr("a memset"), HasSubstr("writes, and nothing")));
}

TEST_F(SimulationTest, AWriteIsInARaceWithAReadBeforeIt) {
  read(first_);
  write(second_);
  EXPECT_THAT(races_.take(), AllOf(HasSubstr("writes memory"), HasSubstr("reads, and nothing")));
}

TEST_F(SimulationTest, TwoReadsAreNoRace) {
  read(first_);
  copy(static_cast<char*>(other_memory_) + kSize / 2, memory_, kSize / 2, first_);
  void* third = nullptr;
  expect_ok(cudaMalloc(&third, kSize));
  copy(third, memory_, kSize, second_);
  EXPECT_THAT(races_.take(), IsEmpty());
  expect_ok(cudaFree(third));
}

TEST_F(SimulationTest, BytesNextToEachOtherAreNoRaceAndOneInCommonIs) {
  char* bytes = static_cast<char*>(memory_);
  expect_ok(cudaMemsetAsync(bytes, 1, 100, first_));
  expect_ok(cudaMemsetAsync(bytes + 100, 1, 100, second_));
  EXPECT_THAT(races_.take(), IsEmpty());
  expect_ok(cudaMemsetAsync(bytes + 199, 1, 100, first_));
  EXPECT_THAT(races_.take(), HasSubstr("nothing orders the two"));
}

TEST_F(SimulationTest, AnEventOrdersStreams) {
  write(first_);
  record(first_);
  wait(second_);
  write(second_);
  EXPECT_THAT(races_.take(), IsEmpty());
}

TEST_F(SimulationTest, AnEventOrdersOnlyWhatWasLaunchedBeforeIt) {
  record(first_);
  write(first_);
  wait(second_);
  write(second_);
  EXPECT_THAT(races_.take(), HasSubstr("nothing orders the two"));
}

TEST_F(SimulationTest, AnEventOrdersOnlyWhatWaitsForIt) {
  write(first_);
  record(first_);
  write(second_);
  wait(second_);
  EXPECT_THAT(races_.take(), HasSubstr("nothing orders the two"));
}

TEST_F(SimulationTest, AWaitOfTheHostOrders) {
  const std::vector<std::function<void()>> waits{
      [&] { expect_ok(cudaStreamSynchronize(first_)); },
      [&] { expect_ok(cudaEventSynchronize(event_)); }, [&] { expect_ok(cudaDeviceSynchronize()); },
      [&] {
        while (cudaEventQuery(event_) != cudaSuccess) std::this_thread::yield();
        cudaGetLastError();  // a query that was too early is no error
      }};
  for (const auto& host_waits : waits) {
    write(first_);
    record(first_);
    host_waits();
    write(second_);
    EXPECT_THAT(races_.take(), IsEmpty());
    expect_ok(cudaDeviceSynchronize());
  }
}

TEST_F(SimulationTest, AWaitOfTheHostForAnotherStreamOrdersNothing) {
  write(first_);
  expect_ok(cudaStreamSynchronize(second_));
  write(second_);
  EXPECT_THAT(races_.take(), HasSubstr("nothing orders the two"));
}

TEST_F(SimulationTest, AQueryThatSaysNotReadyOrdersNothing) {
  write(first_);
  EXPECT_EQ(cudaStreamQuery(first_), cudaErrorNotReady);
  cudaGetLastError();
  write(second_);
  EXPECT_THAT(races_.take(), HasSubstr("nothing orders the two"));
}

TEST_F(SimulationTest, CopiesIntoTheSamePageLockedMemoryMayRace) {
  const auto target = torch::empty({kSize}, torch::TensorOptions(torch::kByte).pinned_memory(true));
  copy(target.data_ptr(), memory_, kSize, first_);
  copy(target.data_ptr(), other_memory_, kSize, second_);
  EXPECT_THAT(races_.take(), HasSubstr("a copy to the host on stream"));
}

TEST_F(SimulationTest, MemoryThatIsNotAllocatedIsReported) {
  void* freed = nullptr;
  expect_ok(cudaMalloc(&freed, kSize));
  expect_ok(cudaFree(freed));
  expect_ok(cudaMemsetAsync(freed, 1, kSize, first_));
  EXPECT_THAT(races_.take(), HasSubstr("uses memory that is not allocated"));
  expect_ok(cudaMemsetAsync(memory_, 1, kSize + 1, first_));
  EXPECT_THAT(races_.take(), HasSubstr("uses memory that is not allocated"));
}

TEST_F(SimulationTest, ARaceEndsAStrictProgram) {
  write(first_);
  expect_ok(cudaStreamSynchronize(first_));
  EXPECT_DEATH(
      {
        function_of_simulation<void(bool)>("simulated_cuda_tolerate_races")(false);
        expect_ok(cudaMemsetAsync(memory_, 1, kSize, first_));
        expect_ok(cudaMemsetAsync(memory_, 1, kSize, second_));
      },
      "race: a memset on stream");
}

// ---- Races between LibTorch's operators

void use_on_side_stream(bool records) {
  const auto side = c10::cuda::getStreamFromPool();
  {
    auto tensor = torch::ones({1000}, torch::kCUDA);
    c10::cuda::getCurrentCUDAStream().synchronize();
    const c10::cuda::CUDAStreamGuard on_side(side);
    const auto sum = tensor.sum();
    if (records) tensor.record_stream(side);
  }
  // The allocator gives the same memory again.
  const auto next = torch::zeros({1000}, torch::kCUDA);
}

TEST_F(SimulationTest, MemoryThatIsUsedAgainWithoutRecordStreamIsARace) {
  use_on_side_stream(/*records=*/false);
  EXPECT_THAT(races_.take(), AllOf(HasSubstr("writes memory that aten::sum"), HasSubstr("reads")));
}

TEST_F(SimulationTest, RecordStreamKeepsMemoryUntilItIsNoRace) {
  use_on_side_stream(/*records=*/true);
  EXPECT_THAT(races_.take(), IsEmpty());
}

TEST_F(SimulationTest, OperatorsOnTwoStreamsNeedAnEvent) {
  auto tensor = torch::ones({10}, torch::kCUDA);
  const auto side = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard on_side(side);
  tensor.add_(1);
  EXPECT_THAT(races_.take(), HasSubstr("aten::add_.Tensor on stream"));
}

// ---- The host

TEST_F(SimulationTest, AResultIsNotThereBeforeTheHostWaits) {
  const auto source = torch::full({3}, 7.0, torch::kCUDA);
  const auto target = torch::zeros({3}, torch::TensorOptions().pinned_memory(true));
  target.copy_(source, /*non_blocking=*/true);
  EXPECT_TRUE(std::isnan(target[0].item<float>()));
  torch::cuda::synchronize();
  EXPECT_EQ(target[0].item<float>(), 7.0F);
}

TEST_F(SimulationTest, FreshMemoryIsNan) {
  c10::cuda::CUDACachingAllocator::emptyCache();
  EXPECT_TRUE(torch::empty({5000000}, torch::kCUDA).isnan().all().item<bool>());
}

TEST_F(SimulationTest, TheHostCannotReadADevicesMemory) {
  const auto tensor = torch::ones({1}, torch::kCUDA);
  EXPECT_EXIT(std::exit(static_cast<int>(*tensor.const_data_ptr<float>())),
              ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(SimulationTest, AKernelThatNothingReplacesEndsAStrictProgram) {
  EXPECT_DEATH(cudaLaunchKernel(&kSize, {}, {}, nullptr, 0, nullptr), "that is not simulated");
}

TEST_F(SimulationTest, RunningOutOfMemoryIsLibTorchsErrorAndPasses) {
  constexpr int64_t kTooMuch = int64_t{1} << 40;
  EXPECT_THROW(torch::empty({kTooMuch}, torch::kCUDA), c10::OutOfMemoryError);
  EXPECT_EQ(torch::ones({2}, torch::kCUDA).sum().item<float>(), 2.0F);
}

TEST_F(SimulationTest, ADeviceHasAContextFromItsFirstUseOn) {
  // In a process that has not used the second device yet.
  EXPECT_EXIT(
      {
        const bool before = c10::cuda::hasPrimaryContext(1);
        const c10::cuda::CUDAGuard on_second(1);
        std::exit(!before && c10::cuda::hasPrimaryContext(1) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(SimulationTest, WaitsThatLeaveAStreamWithoutWorkAreCounted) {
  const auto waits = [&] { return counts().draining_event_waits; };
  const auto before = waits();
  write(first_);
  record(first_);
  write(first_);
  expect_ok(cudaEventSynchronize(event_));
  EXPECT_EQ(waits() - before, 0);
  record(first_);
  expect_ok(cudaEventSynchronize(event_));
  EXPECT_EQ(waits() - before, 1);
}

TEST_F(SimulationTest, CopiesThatOverlapWithOtherStreamsAreCounted) {
  const auto pinned = torch::ones({kSize}, torch::TensorOptions(torch::kByte).pinned_memory(true));
  const auto copies = [&] { return counts().overlapping_host_to_device; };
  expect_ok(cudaDeviceSynchronize());
  auto before = copies();
  write(first_);
  copy(other_memory_, pinned.data_ptr(), kSize, first_);
  EXPECT_EQ(copies() - before, 0) << "behind the work";
  record(first_);
  wait(second_);
  before = copies();
  copy(other_memory_, pinned.data_ptr(), kSize, second_);
  EXPECT_EQ(copies() - before, 0) << "ordered behind it";
  write(first_);
  copy(other_memory_, pinned.data_ptr(), kSize, second_);
  EXPECT_EQ(copies() - before, 1);
  expect_ok(cudaDeviceSynchronize());
  copy(other_memory_, pinned.data_ptr(), kSize, second_);
  EXPECT_EQ(copies() - before, 1) << "the host has waited for all";
}

TEST_F(SimulationTest, CopiesAndWaitsAreCounted) {
  const auto pinned = torch::ones({4}, torch::TensorOptions().pinned_memory(true));
  Counts before = counts();
  auto on_device = pinned.to(torch::kCUDA, /*non_blocking=*/true);
  on_device.add_(1);
  EXPECT_EQ(counts().host_to_device - before.host_to_device, 1);
  EXPECT_EQ(counts().kernels - before.kernels, 1);
  EXPECT_EQ(counts().pageable - before.pageable, 0);
  EXPECT_EQ(counts().stream_waits - before.stream_waits, 0);
  before = counts();
  EXPECT_EQ(on_device[0].item<float>(), 2.0F);
  EXPECT_EQ(counts().device_to_host - before.device_to_host, 1);
  EXPECT_EQ(counts().stream_waits - before.stream_waits, 1);
  before = counts();
  torch::ones({4}).to(torch::kCUDA);
  EXPECT_EQ(counts().pageable - before.pageable, 1);
}

TEST_F(SimulationTest, AKernelThatFailsMakesAllLaterWaitsFail) {
  const auto table = torch::ones({3}, torch::kCUDA);
  const auto index = torch::full({1}, 5, torch::TensorOptions(torch::kCUDA).dtype(torch::kLong));
  const auto result = table.index_select(0, index);
  EXPECT_THROW(result.item<float>(), c10::Error);
  EXPECT_THROW(torch::cuda::synchronize(), c10::Error);
  forget_failure();
  EXPECT_NO_THROW(torch::cuda::synchronize());
}

// ---- Graphs

TEST_F(SimulationTest, AGraphRunsWhenItIsLaunchedAndNotBefore) {
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

TEST_F(SimulationTest, AGraphIsInARaceWithWorkOfAnotherStream) {
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

TEST_F(SimulationTest, BranchesOfAGraphMayRace) {
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

TEST_F(SimulationTest, ABranchThatDoesNotJoinMakesNoGraph) {
  cudaGraph_t graph = nullptr;
  expect_ok(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal));
  record(first_);
  wait(second_);
  write(second_);
  EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureUnjoined);
}

TEST_F(SimulationTest, ACaptureDoesNotDependOnWorkOutside) {
  cudaGraph_t graph = nullptr;
  write(second_);
  record(second_);
  expect_ok(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(cudaStreamWaitEvent(first_, event_, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
}

TEST_F(SimulationTest, TheHostMayNotWaitWhileItCaptures) {
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

TEST_F(SimulationTest, AnotherThreadMayAllocateUnlessTheCaptureIsGlobal) {
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
