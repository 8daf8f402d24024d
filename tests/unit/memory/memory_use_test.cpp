// The memory use that is measured for the process.

#include "linkboy/memory/memory_use.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/mapped_memory.hpp"

namespace linkboy::testing::memory_use_test {
namespace {

TEST(MemoryUseTest, ResidentMemoryGrowsWithAllocations) {
  const double before = resident_mib();
  const MappedMemory taken(256);
  EXPECT_NEAR(resident_mib() - before, 256.0, 64.0);
}

TEST(MemoryUseTest, ThePeakIsAtLeastTheAllocatedMemory) {
  const MappedMemory taken(64);
  // The kernel updates the two values in steps of different sizes.
  EXPECT_GE(peak_resident_mib(), resident_mib() - 1.0);
}

TEST(MemoryUseTest, TheCpuHasNoDevicePeak) {
  const c10::Device cpu(c10::kCPU);
  reset_device_peak(cpu);
  empty_device_cache(cpu);
  EXPECT_FALSE(device_peak(cpu).has_value());
}

TEST(MemoryUseTest, TheDevicePeakCountsFromItsReset_CUDA) {
  const c10::Device device(c10::kCUDA, 0);
  torch::ones({int64_t{64} << 20}, at::TensorOptions().dtype(at::kByte).device(device));
  const DevicePeak with = device_peak(device).value();
  empty_device_cache(device);
  reset_device_peak(device);
  const DevicePeak without = device_peak(device).value();
  EXPECT_GE(with.allocated_mib - without.allocated_mib, 64.0);
  EXPECT_GE(with.reserved_mib - without.reserved_mib, 64.0);
}

}  // namespace
}  // namespace linkboy::testing::memory_use_test
