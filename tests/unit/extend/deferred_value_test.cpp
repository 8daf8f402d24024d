#include "linkboy/extend/deferred_value.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace linkboy::testing::deferred_value_test {
namespace {

TEST(DeferredValueTest, IsReadyImmediatelyOnTheCpu) {
  const DeferredValue value(torch::tensor(2.5));
  EXPECT_TRUE(value.is_ready());
  EXPECT_EQ(value.value(), 2.5);
}

TEST(DeferredValueTest, ValueWaitsForTheDevice_CUDA) {
  auto scalar = torch::ones({}, torch::kCUDA);
  for (int i = 0; i < 20; ++i) scalar = scalar + 1;
  const DeferredValue value(scalar);
  EXPECT_EQ(value.value(), 21.0);
  EXPECT_TRUE(value.is_ready());
}

}  // namespace
}  // namespace linkboy::testing::deferred_value_test
