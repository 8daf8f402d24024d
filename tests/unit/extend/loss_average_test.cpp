#include "linkboy/extend/loss_average.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace linkboy::testing::loss_average_test {
namespace {

TEST(LossAverageTest, IsExactlyTheSampleWeightedMean) {
  const std::vector<double> losses{105.5, 94.7, 98.0, 55.2, 32.5};
  const std::vector<int64_t> sizes{64, 32, 16, 8, 4};
  LossAverage tracker;
  double total = 0.0;
  int64_t count = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    tracker.update(torch::tensor(losses[i], torch::kDouble), sizes[i]);
    total += losses[i] * static_cast<double>(sizes[i]);
    count += sizes[i];
  }
  EXPECT_EQ(tracker.total(), total);
  EXPECT_EQ(tracker.count(), count);
  EXPECT_EQ(tracker.average(), total / static_cast<double>(count));
}

TEST(LossAverageTest, KeepsNoGraphAndAveragesALossPerSample) {
  LossAverage tracker;
  tracker.update(torch::tensor({1.0, 3.0}).requires_grad_(), 2);
  EXPECT_EQ(tracker.average(), 2.0);
}

TEST(LossAverageTest, StartsFromZeroAfterAReset) {
  LossAverage tracker;
  EXPECT_TRUE(std::isnan(tracker.average()));
  tracker.update(torch::tensor(2.0), 2);
  tracker.reset();
  EXPECT_EQ(tracker.count(), 0);
  EXPECT_TRUE(std::isnan(tracker.average()));
  tracker.restore(6.0, 3);
  EXPECT_EQ(tracker.average(), 2.0);
}

TEST(LossAverageTest, AddsUpOnTheDevice_CUDA) {
  LossAverage tracker;
  tracker.update(torch::tensor(2.5, torch::kCUDA), 4);
  tracker.update(torch::tensor(1.5, torch::kCUDA), 4);
  EXPECT_EQ(tracker.average(), 2.0);
}

TEST(LossAverageTest, ARestoredSumContinuesBitIdentically_CUDA) {
  const auto loss = [](int i) { return torch::tensor(std::sin(i) * 1e-3 + 1, torch::kCUDA); };
  LossAverage whole;
  for (int i = 0; i < 1000; ++i) whole.update(loss(i), 3);
  for (int end = 1; end < 1000; end += 100) {
    LossAverage first;
    for (int i = 0; i < end; ++i) first.update(loss(i), 3);
    LossAverage rest;
    rest.restore(first.total(), first.count());
    for (int i = end; i < 1000; ++i) rest.update(loss(i), 3);
    EXPECT_EQ(rest.total(), whole.total());
  }
}

}  // namespace
}  // namespace linkboy::testing::loss_average_test
