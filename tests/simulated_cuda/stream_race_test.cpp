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
using ::testing::MatchesRegex;

constexpr const char* kRace = "nothing orders the two";

// ---- Races between streams

TEST_F(SimulationTest, UnorderedAccessesAreRacesUnlessBothAreReads) {
  const auto before = counts().races;
  write(first_);
  write(second_);
  EXPECT_THAT(races_.take(), MatchesRegex("a memset on stream .* of device 0 writes memory that a "
                                          "memset on stream .* of device 0 writes, and nothing "
                                          "orders the two\n"));
  EXPECT_EQ(counts().races, before + 1);
  read(first_);
  EXPECT_THAT(races_.take(),
              AllOf(HasSubstr("a copy within the devices"), HasSubstr("reads memory"),
                    HasSubstr("a memset"), HasSubstr("writes, and nothing")));
  expect_ok(cudaDeviceSynchronize());
  read(first_);
  write(second_);
  EXPECT_THAT(races_.take(), AllOf(HasSubstr("writes memory"), HasSubstr("reads, and nothing")));
  expect_ok(cudaDeviceSynchronize());
  void* third = nullptr;
  expect_ok(cudaMalloc(&third, kSize));
  read(first_);
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
  EXPECT_THAT(races_.take(), HasSubstr(kRace));
}

TEST_F(SimulationTest, OnlyWaitsForEarlierWorkOrderIt) {
  const auto write_and_record = [&] {
    write(first_);
    record(first_);
  };
  const std::vector<std::pair<const char*, std::function<void()>>> orders{
      {"an event",
       [&] {
         write_and_record();
         wait(second_);
       }},
      {"a wait of the host for the stream",
       [&] {
         write(first_);
         expect_ok(cudaStreamSynchronize(first_));
       }},
      {"a wait of the host for an event",
       [&] {
         write_and_record();
         expect_ok(cudaEventSynchronize(event_));
       }},
      {"a wait of the host for the device",
       [&] {
         write(first_);
         expect_ok(cudaDeviceSynchronize());
       }},
      {"queries of an event",
       [&] {
         write_and_record();
         while (cudaEventQuery(event_) != cudaSuccess) std::this_thread::yield();
       }},
  };
  const std::vector<std::pair<const char*, std::function<void()>>> orders_nothing{
      {"an event before the work",
       [&] {
         record(first_);
         write(first_);
         wait(second_);
       }},
      {"an event that the stream does not wait for", write_and_record},
      {"a wait of the host for another stream",
       [&] {
         write(first_);
         expect_ok(cudaStreamSynchronize(second_));
       }},
      {"a query that returns not ready",
       [&] {
         write(first_);
         EXPECT_EQ(cudaStreamQuery(first_), cudaErrorNotReady);
       }},
  };
  for (const bool is_ordered : {true, false}) {
    for (const auto& [name, work] : is_ordered ? orders : orders_nothing) {
      SCOPED_TRACE(name);
      work();
      cudaGetLastError();  // a query that was too early is not an error
      write(second_);
      EXPECT_EQ(races_.take().find(kRace) == std::string::npos, is_ordered);
      expect_ok(cudaDeviceSynchronize());
    }
  }
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
  EXPECT_DEATH(
      {
        function_of_simulation<void(bool)>("simulated_cuda_tolerate_races")(false);
        write(first_);
        write(second_);
      },
      "race: a memset on stream");
}

// ---- Races between LibTorch's operators

TEST_F(SimulationTest, RecordStreamPreventsTheRaceOfReusedMemory) {
  for (const bool records : {false, true}) {
    const auto side = c10::cuda::getStreamFromPool();
    {
      auto tensor = torch::ones({1000}, torch::kCUDA);
      c10::cuda::getCurrentCUDAStream().synchronize();
      const c10::cuda::CUDAStreamGuard on_side(side);
      const auto sum = tensor.sum();
      if (records) tensor.record_stream(side);
    }
    // Without record_stream, the allocator returns the same memory.
    const auto next = torch::zeros({1000}, torch::kCUDA);
    if (records) {
      EXPECT_THAT(races_.take(), IsEmpty());
    } else {
      EXPECT_THAT(races_.take(),
                  AllOf(HasSubstr("writes memory that aten::sum"), HasSubstr("reads")));
    }
    torch::cuda::synchronize();
  }
}

TEST_F(SimulationTest, OperatorsOnTwoStreamsNeedAnEventToBeOrdered) {
  auto tensor = torch::ones({10}, torch::kCUDA);
  const c10::cuda::CUDAStreamGuard on_side(c10::cuda::getStreamFromPool());
  tensor.add_(1);
  EXPECT_THAT(races_.take(), HasSubstr("aten::add_.Tensor on stream"));
}

}  // namespace
}  // namespace linkboy::simulated_cuda::testing
