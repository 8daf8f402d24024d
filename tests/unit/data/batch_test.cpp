#include "linkboy/data/batch.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/expect_error.hpp"

namespace linkboy::testing::batch_test {
namespace {

TEST(BatchTest, NamesItsTensors) {
  Batch batch{{"ids", torch::ones({3, 2})}, {"mask", torch::zeros({3, 2})}};
  EXPECT_TRUE(batch["mask"].is_same(batch.target()));
  EXPECT_TRUE(batch["ids"].is_same(batch.input()));
  EXPECT_EQ(batch.size(), 3);
  EXPECT_TRUE(batch.contains("mask"));
  EXPECT_FALSE(batch.contains("labels"));
  batch.set("labels", torch::ones({3}));
  batch.set("mask", torch::ones({3}));
  EXPECT_EQ(batch.tensors().size(), 3U);
  EXPECT_EQ(batch["mask"].dim(), 1);
}

TEST(BatchTest, ErrorsListItsContents) {
  const Batch batch(torch::ones({2}));
  EXPECT_ERROR(batch.target(), "has no target; it contains input");
  EXPECT_ERROR(batch["mask"], "has no \"mask\"; it contains input");
  EXPECT_ERROR(Batch().input(), "the batch is empty");
  EXPECT_ERROR((Batch{{"x", torch::ones({1})}, {"x", torch::ones({1})}}),
               "two tensors named \"x\"");
}

TEST(BatchTest, SharesTensorsThatAreAlreadyOnTheDevice) {
  const Batch batch(torch::ones({2}));
  EXPECT_TRUE(batch.to(torch::kCPU).input().is_same(batch.input()));
}

}  // namespace
}  // namespace linkboy::testing::batch_test
