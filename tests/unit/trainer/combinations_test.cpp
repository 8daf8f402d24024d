// Random combinations of options: a run that is cut at a random place and resumed, or extended,
// equals the whole run. The values of their training states, results and weights are equal.
//
// LINKBOY_COMBINATIONS="FROM TO" tries these seeds; otherwise the test tries a few.
// LINKBOY_COMBINATION="optimizer=adam cut=exception" tries one combination.

#include <gtest/gtest.h>

#include "support/combination_checks.hpp"

namespace linkboy::testing::combinations_test {
namespace {

TEST(CombinationsTest, ACutAndResumedRunEqualsTheWholeRun) {
  const SingleThread one_thread;
  CombinationChecks checks;
  if (const char* text = std::getenv("LINKBOY_COMBINATION")) {
    return checks.check(Combination::parse(text), "given");
  }
  const auto [from, to] = seeds_of_combinations(0, 40);
  for (int64_t seed = from; seed < to; ++seed) {
    checks.check(Combination::draw(static_cast<uint64_t>(seed)), c10::str("seed ", seed));
  }
  EXPECT_GE(checks.resumed_from_a_state, (to - from) / 2);
  EXPECT_GE(checks.left_no_trace, (to - from) / 40);
}

}  // namespace
}  // namespace linkboy::testing::combinations_test
