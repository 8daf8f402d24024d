// Fixture of the tests that provoke each fault that the simulation must detect, and run the same
// calls without the fault.

#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "simulated_cuda/simulation.hpp"

namespace linkboy::simulated_cuda::testing {

inline constexpr std::size_t kSize = 1024;

inline void expect_ok(cudaError_t error) {
  EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
}

/// Two streams, an event, device memory, and the reported races.
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

}  // namespace linkboy::simulated_cuda::testing
