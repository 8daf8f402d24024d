// A device whose memory is too small for what training asks for.

#include <c10/cuda/CUDACachingAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "linkboy/batch_size_finder.hpp"
#include "linkboy/memory_use.hpp"
#include "linkboy/trainer.hpp"
#include "support/toy.hpp"

namespace linkboy::simulated_cuda::testing {
namespace {

using namespace linkboy::testing;  // NOLINT(google-build-using-namespace)

constexpr int64_t kWidth = 1024;
constexpr int64_t kRows = 16384;  // their activations alone take more than the device has

TEST(OutOfMemoryTest, FindBatchSizeEndsWithTheLargestThatFits) {
  torch::nn::Sequential model(torch::nn::Linear(kWidth, kWidth));
  QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model), {}, nullptr,
                       {.device = "cuda:0"});
  TrainOptions options{
      .train_dataset = TensorDataset(torch::ones({kRows, kWidth}), torch::arange(kRows) % kWidth),
      .num_epochs = 1};
  const auto result = find_batch_size(trainer, options, {.min_batch_size = 512});
  EXPECT_GE(result.largest, 512);
  EXPECT_LT(result.largest, kRows);
  EXPECT_TRUE(std::any_of(result.trials.begin(), result.trials.end(),
                          [](const BatchSizeTrial& trial) { return !trial.fits; }));

  options.per_device_batch_size = result.largest;
  options.max_num_train_steps = 3;
  trainer.train(options);
  EXPECT_EQ(trainer.num_updates(), 3);
}

TEST(OutOfMemoryTest, EmptyDeviceCacheGivesMemoryBack) {
  const c10::Device device("cuda:0");
  empty_device_cache(device);
  const auto reserved = [] {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].current;
  };
  const auto before = reserved();
  torch::ones({10000000}, torch::kCUDA);
  EXPECT_GE(reserved() - before, 40000000);
  empty_device_cache(device);
  EXPECT_EQ(reserved(), before);
}

}  // namespace
}  // namespace linkboy::simulated_cuda::testing
