#include "linkboy/schedulers/curves.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <numbers>

#include "unit/schedulers/schedules_fixture.hpp"

namespace linkboy::testing::curves_test {
namespace {

class CosineSchedulerTest : public SchedulesTest {
 protected:
  std::unique_ptr<Scheduler> make(const CosineSchedulerOptions& options) {
    return cosine(options)(*optimizer_, ten_by_ten());
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

TEST_F(CosineSchedulerTest, StaysAtTheMinimumInTheCoolDown) {
  auto scheduler =
      make({.min_lr = 1e-4, .cooldown_updates = 3 * placeholders::num_updates_per_epoch});
  EXPECT_GT(scheduler->values_at(69)[0], 1e-4);
  for (int64_t n = 70; n <= 100; ++n) EXPECT_EQ(scheduler->values_at(n)[0], 1e-4);
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

TEST_F(SchedulesTest, WsdEqualsTheValuesOfPytorchAccelerated) {
  const auto sqrt = make(wsd());
  expect_close_values(*sqrt, {{90, 0.01}, {91, 0.00683772550210928}, {95, 0.0029289392592023356}});
  EXPECT_NEAR(sqrt->values_at(99)[0], 5.131765063278429e-4, 1e-15);
  EXPECT_NEAR(sqrt->values_at(100)[0], 1e-8, 1e-20);
  expect_close_values(
      *make(wsd({.decay = WsdSchedulerOptions::Decay::inverse, .min_lr_ratio = 0.1})),
      {{91, 0.005263157894736843}, {95, 0.0018181818181818182}, {100, 0.001}});
  expect_close_values(*make(wsd({.warmup_updates = 10})),
                      {{0, 1e-6}, {1, 0.0010009}, {9, 0.0090001}, {10, 0.01}});
}

TEST_F(SchedulesTest, WsdPlacesItsLastCheckpointAtTheEndOfTheRun) {
  // In pytorch-accelerated, with 2 checkpoints, they were at 25 and 50; with 4, there were only 3.
  for (const std::vector<double>& updates :
       std::vector<std::vector<double>>{{100}, {50, 100}, {25, 50, 100}, {12, 25, 50, 100}}) {
    std::vector<double> checkpoints;
    for (const auto& [name, length] :
         make(wsd({.num_checkpoints = std::ssize(updates)}))->lengths()) {
      if (name.starts_with("checkpoint ")) checkpoints.push_back(length);
    }
    EXPECT_EQ(checkpoints, updates);
  }
}

TEST_F(SchedulesTest, WsdReportsItsPeriods) {
  const auto scheduler = make(wsd({.decay_phase_ratio = 0.2, .num_checkpoints = 2}));
  const std::vector<Scheduler::Length> expected{{"warmup_updates", 0.0},
                                                {"decay 1", 40.0},
                                                {"checkpoint 1", 50.0},
                                                {"decay 2", 90.0},
                                                {"checkpoint 2", 100.0}};
  EXPECT_EQ(scheduler->lengths(), expected);
  expect_values(*scheduler, {{39, 0.01}, {50, 0.01}});
  EXPECT_LT(scheduler->values_at(49)[0], 0.002);
  EXPECT_LT(scheduler->values_at(99)[0], 0.002);
}

TEST_F(SchedulesTest, WsdContinuesFromACheckpointOfAnotherRun) {
  const auto first = make(wsd({.warmup_updates = 20}));
  step(*first, 90);
  const StateDict state = first->state_dict();
  set(ParamGroupField::lr, {0.7, 0.7});
  RunConfig shorter = ten_by_ten();
  shorter.max_num_updates = 50;
  const auto next =
      make(wsd({.warmup_updates = 20, .is_continuation_from_checkpoint = true}), shorter);
  next->load_state_dict(next->continued(state));
  EXPECT_EQ(next->num_updates(), 0);
  EXPECT_EQ(lr(), (std::vector<double>{0.01, 0.002})) << "no warm-up, the first run's base values";
  EXPECT_EQ(next->values_at(44)[0], 0.01);
  EXPECT_LT(next->values_at(46)[0], 0.01);
}

TEST_F(SchedulesTest, ShortPeriodsOfWsdAlsoDecay) {
  for (int64_t total : {2, 5, 9, 10, 19}) {
    EXPECT_LT(value(wsd({.num_updates = total}), total - 1), 0.01) << total;
  }
  EXPECT_EQ(make(wsd({.decay_phase_ratio = 0.29}))->lengths()[1].second, 71.0);
}

}  // namespace
}  // namespace linkboy::testing::curves_test
