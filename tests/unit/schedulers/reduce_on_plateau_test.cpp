// When ReduceOnPlateauScheduler reduces.

#include "linkboy/schedulers/reduce_on_plateau_scheduler.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/ten_by_ten.hpp"
#include "support/toy_optimizer.hpp"

namespace linkboy::testing::reduce_on_plateau_test {
namespace {

TEST(ReduceOnPlateauTest, ValuesWithinTheCoolDownDoNotCount) {
  const auto optimizer = toy_sgd({0.8}, 0.9);
  ReduceOnPlateauScheduler scheduler(*optimizer, {.factor = 0.5, .patience = 1, .cooldown = 2},
                                     ten_by_ten());
  std::vector<double> rates;
  for (int i = 0; i < 9; ++i) {
    scheduler.step_metric(1.0);
    rates.push_back(get_param_group_field(*optimizer, ParamGroupField::lr)[0]);
  }
  // The first value is the best, two bad ones reduce, and two more are passed over.
  EXPECT_EQ(rates, (std::vector<double>{0.8, 0.8, 0.4, 0.4, 0.4, 0.4, 0.2, 0.2, 0.2}));
}

}  // namespace
}  // namespace linkboy::testing::reduce_on_plateau_test
