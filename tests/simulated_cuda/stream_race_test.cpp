// Tests of races between streams, and between LibTorch's operators on them.

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

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- Races between streams

TEST_F(SimulationTest, TwoUnorderedWritesAreARace) {
  const auto before = counts().races;
  write(first_);
  write(second_);
  EXPECT_THAT(races_.take(), ::testing::MatchesRegex(
                                 "a memset on stream .* of device 0 writes memory that a memset "
                                 "on stream .* of device 0 writes, and nothing orders the "
                                 "two\n"));
  EXPECT_EQ(counts().races, before + 1);
}

TEST_F(SimulationTest, AnUnorderedReadAfterAWriteIsARace) {
  write(first_);
  read(second_);
  EXPECT_THAT(races_.take(),
              AllOf(HasSubstr("a copy within the devices"), HasSubstr("reads memory"),
                    HasSubstr("a memset"), HasSubstr("writes, and nothing")));
}

TEST_F(SimulationTest, AnUnorderedWriteAfterAReadIsARace) {
  read(first_);
  write(second_);
  EXPECT_THAT(races_.take(), AllOf(HasSubstr("writes memory"), HasSubstr("reads, and nothing")));
}

TEST_F(SimulationTest, TwoReadsAreNotARace) {
  read(first_);
  copy(static_cast<char*>(other_memory_) + kSize / 2, memory_, kSize / 2, first_);
  void* third = nullptr;
  expect_ok(cudaMalloc(&third, kSize));
  copy(third, memory_, kSize, second_);
  EXPECT_THAT(races_.take(), IsEmpty());
  expect_ok(cudaFree(third));
}

TEST_F(SimulationTest, OnlyOverlappingBytesAreARace) {
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

TEST_F(SimulationTest, AnEventOrdersOnlyEarlierWork) {
  record(first_);
  write(first_);
  wait(second_);
  write(second_);
  EXPECT_THAT(races_.take(), HasSubstr("nothing orders the two"));
}

TEST_F(SimulationTest, AnEventOrdersOnlyWorkThatWaitsForIt) {
  write(first_);
  record(first_);
  write(second_);
  wait(second_);
  EXPECT_THAT(races_.take(), HasSubstr("nothing orders the two"));
}

TEST_F(SimulationTest, AWaitOfTheHostOrdersWork) {
  const std::vector<std::function<void()>> waits{
      [&] { expect_ok(cudaStreamSynchronize(first_)); },
      [&] { expect_ok(cudaEventSynchronize(event_)); }, [&] { expect_ok(cudaDeviceSynchronize()); },
      [&] {
        while (cudaEventQuery(event_) != cudaSuccess) std::this_thread::yield();
        cudaGetLastError();  // a query that was too early is not an error
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

TEST_F(SimulationTest, AQueryThatReturnsNotReadyOrdersNothing) {
  write(first_);
  EXPECT_EQ(cudaStreamQuery(first_), cudaErrorNotReady);
  cudaGetLastError();
  write(second_);
  EXPECT_THAT(races_.take(), HasSubstr("nothing orders the two"));
}

TEST_F(SimulationTest, CopiesIntoTheSamePageLockedMemoryCanRace) {
  const auto target = torch::empty({kSize}, torch::TensorOptions(torch::kByte).pinned_memory(true));
  copy(target.data_ptr(), memory_, kSize, first_);
  copy(target.data_ptr(), other_memory_, kSize, second_);
  EXPECT_THAT(races_.take(), HasSubstr("a copy to the host on stream"));
}

TEST_F(SimulationTest, AccessToUnallocatedMemoryIsReported) {
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
  // The allocator returns the same memory.
  const auto next = torch::zeros({1000}, torch::kCUDA);
}

TEST_F(SimulationTest, ReusedMemoryWithoutRecordStreamIsARace) {
  use_on_side_stream(/*records=*/false);
  EXPECT_THAT(races_.take(), AllOf(HasSubstr("writes memory that aten::sum"), HasSubstr("reads")));
}

TEST_F(SimulationTest, RecordStreamPreventsTheRace) {
  use_on_side_stream(/*records=*/true);
  EXPECT_THAT(races_.take(), IsEmpty());
}

TEST_F(SimulationTest, OperatorsOnTwoStreamsNeedAnEventToBeOrdered) {
  auto tensor = torch::ones({10}, torch::kCUDA);
  const auto side = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard on_side(side);
  tensor.add_(1);
  EXPECT_THAT(races_.take(), HasSubstr("aten::add_.Tensor on stream"));
}

}  // namespace
}  // namespace linkboy::simulated_cuda::testing
