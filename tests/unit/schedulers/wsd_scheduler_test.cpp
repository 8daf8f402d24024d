#include "linkboy/schedulers/wsd_scheduler.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "unit/schedulers/schedules_fixture.hpp"

namespace linkboy::testing::wsd_scheduler_test {
namespace {

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
  for (const std::vector<int64_t>& updates :
       std::vector<std::vector<int64_t>>{{100}, {50, 100}, {25, 50, 100}, {12, 25, 50, 100}}) {
    const auto number = static_cast<int64_t>(updates.size());
    EXPECT_EQ(make<WsdScheduler>(wsd({.num_checkpoints = number}))->checkpoint_updates(), updates);
  }
}

TEST_F(SchedulesTest, WsdReportsItsPeriods) {
  const auto scheduler = make<WsdScheduler>(wsd({.decay_phase_ratio = 0.2, .num_checkpoints = 2}));
  ASSERT_EQ(scheduler->periods().size(), 2U);
  EXPECT_EQ(scheduler->period_at(0).decay_begin, 40);
  EXPECT_EQ(scheduler->period_at(49).end, 50);
  EXPECT_EQ(scheduler->period_at(50).begin, 50);
  EXPECT_EQ(scheduler->period_at(50).decay_begin, 90);
  EXPECT_EQ(scheduler->period_at(1000).end, 100);
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
    const auto wsd = make<WsdScheduler>(linkboy::wsd({.num_updates = total}));
    EXPECT_LT(wsd->values_at(total - 1)[0], 0.01) << total;
  }
  const auto share = make<WsdScheduler>(wsd({.decay_phase_ratio = 0.29}));
  EXPECT_EQ(share->periods()[0].decay_begin, 71);
}

}  // namespace
}  // namespace linkboy::testing::wsd_scheduler_test
