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

TrainOptions run_of(int64_t num_epochs) {
  return {.train_dataset = toy_data(8), .num_epochs = num_epochs};
}

TEST(MemoryMonitorTest, ResidentMemoryGrowsWithAllocations) {
  std::optional<MappedMemory> kept;
  const auto allocate = make<LambdaCallback>({.on_train_epoch_start = [&](Trainer& trainer) {
    if (trainer.run_history().current_epoch() == 2) kept.emplace(256);
  }});
  Toy toy({std::make_shared<MemoryMonitor>(), allocate});
  toy.trainer.train(run_of(2));
  const auto resident = toy.trainer.run_history().get_metric_values("resident_mib");
  ASSERT_EQ(resident.size(), 2);
  EXPECT_GT(resident[1] - resident[0], 128.0);  // the rest of the process can shrink
}

TEST(MemoryMonitorTest, ThePeakStaysAfterMemoryIsFreed) {
  { const MappedMemory given_back(320); }
  Toy toy({std::make_shared<MemoryMonitor>()});
  toy.trainer.train(run_of(1));
  const auto& history = toy.trainer.run_history();
  EXPECT_GT(history.get_latest_metric("peak_resident_mib"),
            history.get_latest_metric("resident_mib") + 128.0);
}

TEST(MemoryMonitorTest, EvaluateReturnsItsValues) {
  Toy toy({std::make_shared<MemoryMonitor>()});
  const Metrics metrics = toy.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_EQ(metrics.count("resident_mib"), 1);
  EXPECT_EQ(metrics.count("peak_resident_mib"), 1);
}

TEST(MemoryMonitorTest, ARunOnTheCpuHasNoCudaPeak) {
  Toy toy({std::make_shared<MemoryMonitor>()});
  toy.trainer.train(run_of(1));
  EXPECT_TRUE(toy.trainer.run_history().get_metric_values("cuda_peak_mib").empty());
}

TEST(MemoryMonitorTest, TheCudaPeakIsThatOfTheEpoch_CUDA) {
  const auto allocate_and_free =
      make<LambdaCallback>({.on_train_epoch_start = [](Trainer& trainer) {
        if (trainer.run_history().current_epoch() > 1) return;
        torch::empty({int64_t{64} << 20},
                     at::TensorOptions().dtype(at::kByte).device(trainer.device()));
      }});
  const auto model = toy_model();
  QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                       {.callbacks = {std::make_shared<MemoryMonitor>(), allocate_and_free},
                        .default_callbacks = {},
                        .accelerator = {.device = "cuda"}});
  trainer.train(run_of(2));
  const auto peak = trainer.run_history().get_metric_values("cuda_peak_mib");
  ASSERT_EQ(peak.size(), 2);
  EXPECT_GE(peak[0], 64.0);
  EXPECT_GT(peak[1], 0.0);
  EXPECT_GE(peak[0] - peak[1], 63.0);
}

}  // namespace
}  // namespace linkboy::testing::memory_monitor_test
