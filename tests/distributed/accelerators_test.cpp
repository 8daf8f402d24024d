// Several Accelerators in one process.

#include "distributed/ranks.hpp"

namespace linkboy::testing::accelerators_test {
namespace {

using namespace std::chrono_literals;

AcceleratorOptions with_timeout(std::chrono::milliseconds timeout) {
  AcceleratorOptions options = together();
  options.distributed.timeout = timeout;
  return options;
}

void expect_works(const Accelerator& accelerator) {
  EXPECT_EQ(accelerator.reduce(torch::ones({1}, torch::kLong)).item<int64_t>(), num_ranks());
}

TEST(AcceleratorsTest, ASecondOneUsesItsOwnTimeout) {
  const Accelerator first(with_timeout(60s));
  const Accelerator second(with_timeout(20s));
  EXPECT_EQ(second.process_group().timeout(), 20s);
  EXPECT_EQ(first.process_group().timeout(), 60s);
  expect_works(second);
  expect_works(first);
}

TEST(AcceleratorsTest, ShareAGroupIfAllRanksHaveIt) {
  const Accelerator first(with_timeout(25s));
  const Accelerator second(with_timeout(25s));
  EXPECT_EQ(&first.process_group(), &second.process_group());
}

TEST(AcceleratorsTest, OneThatASingleRankKeepsDoesNotPreventAnother) {
  auto first = std::make_unique<Accelerator>(with_timeout(15s));
  if (this_rank() != 0) first.reset();
  const Accelerator second(with_timeout(15s));
  expect_works(second);
  const Accelerator third(with_timeout(15s));
  EXPECT_EQ(&third.process_group(), &second.process_group());
  expect_works(third);
}

}  // namespace
}  // namespace linkboy::testing::accelerators_test
