#include "checkpoint/rng_state.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace linkboy::testing::rng_state_test {
namespace {

const c10::Device kCpu("cpu");

StateDict state_of_seed(uint64_t seed) {
  torch::manual_seed(seed);
  return rng_state(kCpu);
}

torch::Tensor numbers_of_additional_rank(const std::vector<StateDict>& states, int64_t rank) {
  set_rng_state_of_additional_rank(kCpu, states, rank);
  return torch::rand({2});
}

TEST(RngStateTest, AnAdditionalRanksNumbersDependOnItsRankAndOnAllSavedStates) {
  const std::vector<StateDict> states{state_of_seed(1), state_of_seed(2)};
  const auto second = numbers_of_additional_rank(states, 2);
  EXPECT_TRUE(torch::equal(numbers_of_additional_rank(states, 2), second));
  EXPECT_FALSE(torch::equal(numbers_of_additional_rank(states, 3), second));
  EXPECT_FALSE(torch::equal(numbers_of_additional_rank({state_of_seed(3), states[1]}, 2), second));
  set_rng_state(kCpu, states[1]);
  EXPECT_FALSE(torch::equal(torch::rand({2}), second));
}

TEST(RngStateTest, AnAdditionalRankContinuesNumbersThatAllRanksShare) {
  const StateDict state = state_of_seed(5);
  const auto shared = torch::rand({2});
  EXPECT_TRUE(torch::equal(numbers_of_additional_rank({state, state}, 2), shared));
  EXPECT_FALSE(torch::equal(numbers_of_additional_rank({state}, 1), shared));
}

}  // namespace
}  // namespace linkboy::testing::rng_state_test
