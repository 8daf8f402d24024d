#include "linkboy/schedulers/curves.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <numbers>

#include "unit/schedulers/schedules_fixture.hpp"

namespace linkboy::testing::cosine_scheduler_test {
namespace {

class CosineSchedulerTest : public SchedulesTest {
 protected:
  std::unique_ptr<Scheduler> make(const CosineSchedulerOptions& options,
                                  const RunConfig& config = ten_by_ten()) {
    return cosine(options)(*optimizer_, config);
  }
};

TEST_F(CosineSchedulerTest, EqualsTheValuesOfPytorchAccelerated) {
  auto scheduler = make({});
  expect_close_values(
      *scheduler, {{0, 0.01}, {1, 0.009997533048548475}, {50, 0.005000500000000001}, {100, 1e-6}});
  EXPECT_NEAR(scheduler->values_at(99)[0], 3.466951451524866e-06, 1e-17);
  expect_close_values(*make({.k_decay = 2.0}), {{50, 0.008535680352542143}});
}

TEST_F(CosineSchedulerTest, WarmsUpLinearlyWithoutAJump) {
  // In pytorch-accelerated, a warm-up of W updates let the curve end W updates early.
  auto scheduler = make({.warmup_updates = 2 * placeholders::num_updates_per_epoch});
  expect_close_values(
      *scheduler,
      {{0, 1e-6}, {1, 5.0095e-4}, {19, 0.00950005}, {20, 0.01}, {60, 0.0050005}, {100, 1e-6}});
  EXPECT_NEAR(scheduler->values_at(79)[0], 0.0016068356727080588, 1e-17);
  EXPECT_GT(scheduler->values_at(80)[0], 0.0014);
  for (int64_t n = 20; n < 100; ++n) {
    const double drop = scheduler->values_at(n)[0] - scheduler->values_at(n + 1)[0];
    EXPECT_GT(drop, 0.0);
    EXPECT_LT(drop, 2.0e-4);
  }
}

TEST_F(CosineSchedulerTest, WarmUpMayBeAFractionOfAnEpoch) {
  auto scheduler = make({.warmup_updates = 0.25 * placeholders::num_updates_per_epoch});
  EXPECT_DOUBLE_EQ(scheduler->values_at(1)[0], 1e-6 + (0.01 - 1e-6) / 2.5);
  EXPECT_LT(scheduler->values_at(3)[0], 0.01);
  EXPECT_GT(scheduler->values_at(3)[0], 0.0099);
}

TEST_F(CosineSchedulerTest, StaysAtTheMinimumInTheCoolDown) {
  auto scheduler =
      make({.min_lr = 1e-4, .cooldown_updates = 3 * placeholders::num_updates_per_epoch});
  EXPECT_GT(scheduler->values_at(69)[0], 1e-4);
  for (int64_t n = 70; n <= 100; ++n) EXPECT_EQ(scheduler->values_at(n)[0], 1e-4);
}

TEST_F(CosineSchedulerTest, CoversARunThatEndsInMidEpoch) {
  RunConfig config = ten_by_ten();
  config.max_num_updates = 95;
  const auto scheduler = make({}, config);
  EXPECT_GT(scheduler->values_at(94)[0], 1e-6);
  EXPECT_EQ(scheduler->values_at(95)[0], 1e-6);
}

TEST_F(CosineSchedulerTest, MovesEveryGroupFromItsOwnBaseValue) {
  auto scheduler = make({.min_lr_ratio = 0.1,
                         .warmup_updates = 1 * placeholders::num_updates_per_epoch,
                         .warmup_start_lr_ratio = 0.5});
  const std::vector<double> base{0.01, 0.002};
  for (std::size_t group = 0; group < 2; ++group) {
    EXPECT_DOUBLE_EQ(scheduler->values_at(0)[group], 0.5 * base[group]);
    EXPECT_DOUBLE_EQ(scheduler->values_at(10)[group], base[group]);
    EXPECT_DOUBLE_EQ(scheduler->values_at(100)[group], 0.1 * base[group]);
  }
}

TEST_F(CosineSchedulerTest, RejectsAStateThatDoesNotFit) {
  auto scheduler = make({});
  EXPECT_ERROR(scheduler->load_state_dict({{"num_updates", 3}}), "no \"base_values\"");
  StateDict three_groups = scheduler->state_dict();
  StateDict three_values;
  three_values.set("lr", std::vector<double>{0.1, 0.2, 0.3});
  three_groups.set("base_values", three_values);
  EXPECT_ERROR(scheduler->load_state_dict(three_groups), "has 3 param groups");
  StateDict negative = scheduler->state_dict();
  negative.set("num_updates", -3);
  EXPECT_ERROR(scheduler->load_state_dict(negative), "has a count of -3 updates");
  StateDict other_field = make({.field = ParamGroupField::weight_decay})->state_dict();
  EXPECT_ERROR(scheduler->load_state_dict(other_field), "no \"lr\"");
}

TEST_F(CosineSchedulerTest, RejectsInconsistentLengths) {
  EXPECT_ERROR(make({.warmup_updates = 11 * placeholders::num_updates_per_epoch}),
               "warms up for 110 and cools down for 0 of 100");
  EXPECT_ERROR(make({.warmup_updates = 5 * placeholders::num_updates_per_epoch,
                     .cooldown_updates = 5 * placeholders::num_updates_per_epoch}),
               "together they must be shorter than the schedule");
  EXPECT_ERROR(make({.warmup_updates = -1 * placeholders::num_updates_per_epoch}),
               "warmup_updates ((-1 * num_updates_per_epoch)) is -10");
  EXPECT_ERROR(make({.cooldown_updates = -1 * placeholders::num_updates_per_epoch}),
               "cooldown_updates ((-1 * num_updates_per_epoch)) is -10");
  EXPECT_ERROR(make({.k_decay = 0.0}), "k_decay is 0");
  EXPECT_ERROR(make({.min_lr = -1.0}), "min_lr is -1");
  EXPECT_ERROR(make({.num_updates = placeholders::num_eval_batches_per_epoch}),
               "num_eval_batches_per_epoch has no value");
}

TEST_F(CosineSchedulerTest, CanScheduleWeightDecay) {
  set(ParamGroupField::weight_decay, {0.1, 0.1});
  auto scheduler = make({.min_lr = 0.0, .field = ParamGroupField::weight_decay});
  step(*scheduler, 50);
  EXPECT_NEAR(get(ParamGroupField::weight_decay)[0], 0.05, 1e-12);
  EXPECT_EQ(lr()[0], 0.01);
}

TEST_F(SchedulesTest, CosineWithWarmUpAndCoolDownHasNoJump) {
  // The same over the whole curve: no update changes the value by more than the steepest
  // slope.
  for (double warmup : {0.0, 0.5, 1.0, 3.7}) {
    for (double cooldown : {0.0, 1.0, 2.5}) {
      const auto scheduler =
          make(cosine({.warmup_updates = warmup * placeholders::num_updates_per_epoch,
                       .cooldown_updates = cooldown * placeholders::num_updates_per_epoch}));
      const double length = 100.0 - 10.0 * (warmup + cooldown);
      const double slope =
          std::max(0.01 * std::numbers::pi / 2.0 / length, warmup > 0 ? 0.001 / warmup : 0.0);
      for (int64_t n = 0; n <= 100; ++n) {
        EXPECT_LE(std::abs(scheduler->values_at(n + 1)[0] - scheduler->values_at(n)[0]),
                  slope * (1.0 + 1e-12))
            << "warm-up " << warmup << ", cool-down " << cooldown << ", update " << n;
      }
      const auto end = static_cast<int64_t>(std::ceil(100.0 - 10.0 * cooldown));
      EXPECT_EQ(scheduler->values_at(end)[0], 1e-6);
      EXPECT_GT(scheduler->values_at(end - 1)[0], 1e-6);
    }
  }
}

}  // namespace
}  // namespace linkboy::testing::cosine_scheduler_test
