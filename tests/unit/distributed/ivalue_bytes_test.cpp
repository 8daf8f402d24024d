#include "distributed/ivalue_bytes.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

namespace linkboy::testing::ivalue_bytes_test {
namespace {

TEST(IValueBytesTest, AViewIsSentWithoutTheRestOfItsStorage) {
  const auto numbers = torch::arange(100'000, torch::kFloat).view({1000, 100});
  for (const auto& view : {numbers[2].narrow(0, 5, 3), numbers.t()[7].narrow(0, 1, 4)}) {
    const std::string bytes = to_bytes(view);
    EXPECT_LT(bytes.size(), 2000U);
    EXPECT_TRUE(torch::equal(from_bytes(bytes).toTensor(), view));
  }
}

TEST(IValueBytesTest, TensorsOfADeviceArriveOnTheCpu_CUDA) {
  const auto tensor = from_bytes(to_bytes(torch::ones({3}, torch::kCUDA))).toTensor();
  EXPECT_TRUE(torch::equal(tensor, torch::ones({3})));
}

}  // namespace
}  // namespace linkboy::testing::ivalue_bytes_test
