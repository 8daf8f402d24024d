// The values that MemoryMonitor records.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/memory_monitor.hpp"
#include "support/mapped_memory.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::memory_monitor_test {
namespace {

TEST(MemoryMonitorTest, ResidentMemoryGrowsWithAllocations) {
  std::optional<MappedMemory> kept;
  const auto allocate = make<LambdaCallback>({.on_train_epoch_start = [&](Trainer& trainer) {
    if (trainer.run_history().current_epoch() == 2) kept.emplace(256);
  }});
  Toy toy({std::make_shared<MemoryMonitor>(), allocate});
  toy.train({.num_epochs = 2});
  const auto resident = toy.values("resident_mib");
  ASSERT_EQ(resident.size(), 2);
  EXPECT_GT(resident[1] - resident[0], 128.0);  // the rest of the process can shrink
}

TEST(MemoryMonitorTest, ThePeakStaysAfterMemoryIsFreed) {
  { const MappedMemory given_back(320); }
  Toy toy({std::make_shared<MemoryMonitor>()});
  toy.train();
  EXPECT_GT(toy.values("peak_resident_mib").at(0), toy.values("resident_mib").at(0) + 128.0);
}

TEST(MemoryMonitorTest, EvaluateReturnsItsValues) {
  Toy toy({std::make_shared<MemoryMonitor>()});
  const Metrics metrics = toy.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_EQ(metrics.count("resident_mib"), 1);
  EXPECT_EQ(metrics.count("peak_resident_mib"), 1);
}

TEST(MemoryMonitorTest, ARunOnTheCpuHasNoCudaPeak) {
  Toy toy({std::make_shared<MemoryMonitor>()});
  toy.train();
  EXPECT_TRUE(toy.values("cuda_peak_mib").empty());
}

TEST(MemoryMonitorTest, TheCudaPeakIsThatOfTheEpoch_CUDA) {
  const auto allocate_and_free =
      make<LambdaCallback>({.on_train_epoch_start = [](Trainer& trainer) {
        if (trainer.run_history().current_epoch() > 1) return;
        torch::empty({int64_t{64} << 20},
                     at::TensorOptions().dtype(at::kByte).device(trainer.accelerator().device()));
      }});
  Toy toy({std::make_shared<MemoryMonitor>(), allocate_and_free}, 0.1, {.device = "cuda"});
  toy.train({.num_epochs = 2});
  const auto peak = toy.values("cuda_peak_mib");
  ASSERT_EQ(peak.size(), 2);
  EXPECT_GE(peak[0], 64.0);
  EXPECT_GT(peak[1], 0.0);
  EXPECT_GE(peak[0] - peak[1], 63.0);
}

}  // namespace
}  // namespace linkboy::testing::memory_monitor_test
