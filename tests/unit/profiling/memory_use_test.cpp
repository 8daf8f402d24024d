// What the process is found to use of memory.

#include "linkboy/memory_use.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace linkboy::testing::memory_use_test {
namespace {

constexpr int64_t kMebibyte = 1024 * 1024;

torch::Tensor bytes_on(c10::Device device, int64_t num_mib) {
  return torch::ones({num_mib * kMebibyte}, at::TensorOptions().dtype(at::kByte).device(device));
}

TEST(MemoryUseTest, ResidentMemoryGrowsByWhatIsTaken) {
  const double before = resident_mib();
  const torch::Tensor taken = bytes_on(c10::kCPU, 64);
  EXPECT_GT(resident_mib() - before, 48.0);
  EXPECT_LT(resident_mib() - before, 80.0);
}

TEST(MemoryUseTest, PeakIsNoLessThanWhatIsTaken) {
  const torch::Tensor taken = bytes_on(c10::kCPU, 64);
  // The kernel counts the two in steps of their own.
  EXPECT_GE(peak_resident_mib(), resident_mib() - 1.0);
}

TEST(MemoryUseTest, CpuIsNoDeviceWithAPeak) {
  const c10::Device cpu(c10::kCPU);
  reset_device_peak(cpu);
  empty_device_cache(cpu);
  EXPECT_FALSE(device_peak(cpu).has_value());
}

TEST(MemoryUseTest, DevicePeakIsOfTheTimeSinceItsReset_CUDA) {
  const c10::Device device(c10::kCUDA, 0);
  bytes_on(device, 64);
  const DevicePeak with = device_peak(device).value();
  empty_device_cache(device);
  reset_device_peak(device);
  const DevicePeak without = device_peak(device).value();
  EXPECT_GE(with.allocated_mib - without.allocated_mib, 64.0);
  EXPECT_GE(with.reserved_mib - without.reserved_mib, 64.0);
}

}  // namespace
}  // namespace linkboy::testing::memory_use_test
