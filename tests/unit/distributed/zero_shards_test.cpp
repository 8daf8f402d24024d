#include "distributed/zero_shards.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/expect_error.hpp"
#include "support/fake_process_group.hpp"

namespace linkboy::testing::zero_shards_test {
namespace {

TEST(ZeroShardsTest, AStepThatThrowsRestoresTheGradientsOnce) {
  auto own = torch::ones({3}).requires_grad_();
  auto others = torch::ones({2}).requires_grad_();
  torch::optim::SGD optimizer({own, others}, 0.1);
  ZeroShards shards(pretended_group(0, 2));
  shards.assign(optimizer);
  ASSERT_EQ(shards.owner_of(others), 1);
  own.mutable_grad() = torch::ones({3});
  others.mutable_grad() = torch::ones({2});
  const auto fail = [&]() -> bool {
    EXPECT_FALSE(others.grad().defined());
    throw Error("no step");
  };
  EXPECT_ERROR(shards.step(optimizer, fail), "no step");
  EXPECT_TRUE(others.grad().defined());
  optimizer.zero_grad();
  shards.step(optimizer, [] {});
  EXPECT_FALSE(others.grad().defined()) << "an old gradient was restored";
}

}  // namespace
}  // namespace linkboy::testing::zero_shards_test
