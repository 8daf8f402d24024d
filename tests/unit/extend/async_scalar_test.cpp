#include "linkboy/extend/async_scalar.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace linkboy::testing::async_scalar_test {
namespace {

TEST(AsyncScalarTest, IsReadyImmediatelyOnTheCpu) {
  const AsyncScalar value(torch::tensor(2.5));
  EXPECT_TRUE(value.is_ready());
  EXPECT_EQ(value.value(), 2.5);
}

TEST(AsyncScalarTest, ValueWaitsForTheDevice_CUDA) {
  auto scalar = torch::ones({}, torch::kCUDA);
  for (int i = 0; i < 20; ++i) scalar = scalar + 1;
  const AsyncScalar value(scalar);
  EXPECT_EQ(value.value(), 21.0);
  EXPECT_TRUE(value.is_ready());
}

}  // namespace
}  // namespace linkboy::testing::async_scalar_test
