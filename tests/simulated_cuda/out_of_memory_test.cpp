// Tests of training on a device with too little memory.

#include <c10/cuda/CUDACachingAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "linkboy/fine_tuning/batch_size_finder.hpp"
#include "linkboy/memory/memory_use.hpp"
#include "linkboy/trainer.hpp"
#include "support/toy.hpp"

namespace linkboy::simulated_cuda::testing {
namespace {

using namespace linkboy::testing;  // NOLINT(google-build-using-namespace)

constexpr int64_t kWidth = 1024;
constexpr int64_t kRows = 16384;  // their activations alone need more memory than the device has
const c10::Device kDevice("cuda:0");

TrainerOptions on_device() {
  return {.default_callbacks = {}, .accelerator = {.device = kDevice.str()}};
}

class FindBatchSizeTest : public ::testing::TestWithParam<ExecutionMode> {};

INSTANTIATE_TEST_SUITE_P(Modes, FindBatchSizeTest,
                         ::testing::Values(ExecutionMode::eager, ExecutionMode::graph),
                         [](const auto& mode) {
                           return mode.param == ExecutionMode::graph ? "graph" : "eager";
                         });

TEST_P(FindBatchSizeTest, ReturnsTheLargestSizeThatFits) {
  torch::nn::Sequential model(torch::nn::Linear(kWidth, kWidth));
  QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model), on_device());
  TrainOptions options{
      .train_dataset = TensorDataset(torch::ones({kRows, kWidth}), torch::arange(kRows) % kWidth),
      .num_epochs = 1,
      .execution_mode = GetParam()};
  const auto result = find_batch_size(trainer, options, {.min_batch_size = 512});
  EXPECT_GE(result.largest, 512);
  EXPECT_LT(result.largest, kRows);
  EXPECT_TRUE(std::any_of(result.trials.begin(), result.trials.end(),
                          [](const BatchSizeTrial& trial) { return !trial.fits; }));

  options.per_device_batch_size = result.largest;
  options.max_num_updates = 6;  // graph mode records the fourth one
  trainer.train(options);
  EXPECT_EQ(trainer.num_updates(), 6);
}

double peak_mib_of(ExecutionMode mode, int64_t rows) {
  torch::nn::Sequential model(torch::nn::Linear(8, kWidth), torch::nn::Tanh(),
                              torch::nn::Linear(kWidth, kWidth), torch::nn::Tanh(),
                              torch::nn::Linear(kWidth, 2));
  QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model), on_device());
  empty_device_cache(kDevice);
  reset_device_peak(kDevice);
  // The windows have 2, 2 and 1 micro-steps, which makes two recordings.
  trainer.train(
      {.train_dataset = TensorDataset(torch::ones({5 * rows, 8}), torch::arange(5 * rows) % 2),
       .per_device_batch_size = rows,
       .num_epochs = 3,
       .gradient_accumulation_steps = 2,
       .execution_mode = mode});
  return device_peak(kDevice)->reserved_mib;
}

TEST(OutOfMemoryTest, GraphModeNeedsAtMostOneMoreSetOfActivationsThanEager) {
  constexpr int64_t kRows = 2048;  // 8 MiB per activation
  const double eager = peak_mib_of(ExecutionMode::eager, kRows);
  const double activations = eager - peak_mib_of(ExecutionMode::eager, 1);
  EXPECT_GT(activations, 4 * 8.0);
  EXPECT_LE(peak_mib_of(ExecutionMode::graph, kRows), eager + activations);
}

TEST(OutOfMemoryTest, ARecordingThatRunsOutOfMemoryLeavesTheDeviceUsable) {
  torch::nn::Sequential model(torch::nn::Linear(kWidth, kWidth));
  int64_t num_calls = 0;
  const auto loss = [&](const torch::Tensor& output, const torch::Tensor& target) {
    auto sum = torch::nn::functional::cross_entropy(output, target);
    if (++num_calls == 4) sum = sum + torch::ones({int64_t{1} << 30}, torch::kCUDA).sum();
    return sum;
  };
  const auto train = [&](ExecutionMode mode) {
    QuietTrainer trainer(model, loss, toy_sgd(model), on_device());
    trainer.train({.train_dataset = TensorDataset(torch::ones({64, kWidth}), torch::arange(64)),
                   .num_epochs = 1,
                   .execution_mode = mode});
    EXPECT_EQ(trainer.num_updates(), 8);
  };
  EXPECT_THROW(train(ExecutionMode::graph), c10::OutOfMemoryError);
  train(ExecutionMode::eager);
  num_calls = 5;
  train(ExecutionMode::graph);
}

TEST(OutOfMemoryTest, EmptyDeviceCacheReleasesMemory) {
  empty_device_cache(kDevice);
  const auto reserved = [] {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].current;
  };
  const auto before = reserved();
  torch::ones({10000000}, torch::kCUDA);
  EXPECT_GE(reserved() - before, 40000000);
  empty_device_cache(kDevice);
  EXPECT_EQ(reserved(), before);
}

}  // namespace
}  // namespace linkboy::simulated_cuda::testing
