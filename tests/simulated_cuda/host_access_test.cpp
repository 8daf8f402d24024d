// Tests of the host: the memory that it can read, and the counts of its waits and copies.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "simulated_cuda/simulation.hpp"
#include "simulated_cuda/simulation_fixture.hpp"

namespace linkboy::simulated_cuda::testing {
namespace {

TEST_F(SimulationTest, AResultIsNotAvailableBeforeTheHostWaits) {
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

TEST_F(SimulationTest, TheHostCannotReadDeviceMemory) {
  const auto tensor = torch::ones({1}, torch::kCUDA);
  EXPECT_EXIT(std::exit(static_cast<int>(*tensor.const_data_ptr<float>())),
              ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(SimulationTest, AnUnsupportedKernelEndsAStrictProgram) {
  EXPECT_DEATH(cudaLaunchKernel(&kSize, {}, {}, nullptr, 0, nullptr), "that is not simulated");
}

TEST_F(SimulationTest, RunningOutOfMemoryIsARecoverableLibTorchError) {
  constexpr int64_t kTooMuch = int64_t{1} << 40;
  EXPECT_THROW(torch::empty({kTooMuch}, torch::kCUDA), c10::OutOfMemoryError);
  EXPECT_EQ(torch::ones({2}, torch::kCUDA).sum().item<float>(), 2.0F);
}

TEST_F(SimulationTest, ADeviceHasAContextAfterItsFirstUse) {
  // Runs in a process that has not used the second device yet.
  EXPECT_EXIT(
      {
        const bool before = c10::cuda::hasPrimaryContext(1);
        const c10::cuda::CUDAGuard on_second(1);
        std::exit(!before && c10::cuda::hasPrimaryContext(1) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(SimulationTest, WaitsThatDrainAStreamAreCounted) {
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
  EXPECT_EQ(copies() - before, 0) << "on the same stream as the work";
  record(first_);
  wait(second_);
  before = copies();
  copy(other_memory_, pinned.data_ptr(), kSize, second_);
  EXPECT_EQ(copies() - before, 0) << "ordered after the work by an event";
  write(first_);
  copy(other_memory_, pinned.data_ptr(), kSize, second_);
  EXPECT_EQ(copies() - before, 1);
  expect_ok(cudaDeviceSynchronize());
  copy(other_memory_, pinned.data_ptr(), kSize, second_);
  EXPECT_EQ(copies() - before, 1) << "the host has waited for all work";
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

}  // namespace
}  // namespace linkboy::simulated_cuda::testing
