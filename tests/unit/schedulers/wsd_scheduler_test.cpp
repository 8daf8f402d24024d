#include "linkboy/schedulers/wsd_scheduler.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "support/ten_by_ten.hpp"
#include "unit/schedulers/schedules_fixture.hpp"

namespace linkboy::testing::wsd_scheduler_test {
namespace {

TEST_F(SchedulesTest, WsdEqualsTheValuesOfPytorchAccelerated) {
  const auto sqrt = wsd();
  EXPECT_DOUBLE_EQ(value(sqrt, 90), 0.01);
  EXPECT_DOUBLE_EQ(value(sqrt, 91), 0.00683772550210928);
  EXPECT_DOUBLE_EQ(value(sqrt, 95), 0.0029289392592023356);
  EXPECT_NEAR(value(sqrt, 99), 5.131765063278429e-4, 1e-15);
  EXPECT_NEAR(value(sqrt, 100), 1e-8, 1e-20);
  const auto inverse = wsd({.decay = WsdSchedulerOptions::Decay::inverse, .min_lr_ratio = 0.1});
  EXPECT_DOUBLE_EQ(value(inverse, 91), 0.005263157894736843);
  EXPECT_DOUBLE_EQ(value(inverse, 95), 0.0018181818181818182);
  EXPECT_DOUBLE_EQ(value(inverse, 100), 0.001);
  const auto warm = wsd({.warmup_updates = 10});
  EXPECT_DOUBLE_EQ(value(warm, 0), 1e-6);
  EXPECT_DOUBLE_EQ(value(warm, 1), 0.0010009);
  EXPECT_DOUBLE_EQ(value(warm, 9), 0.0090001);
  EXPECT_DOUBLE_EQ(value(warm, 10), 0.01);
}

TEST_F(SchedulesTest, WsdPlacesItsLastCheckpointAtTheEndOfTheRun) {
  // In pytorch-accelerated, with 2 checkpoints, they were at 25 and 50; with 4, there were only 3.
  auto checkpoints = [&](int64_t number) {
    return make<WsdScheduler>(wsd({.num_checkpoints = number}))->checkpoint_updates();
  };
  EXPECT_EQ(checkpoints(1), (std::vector<int64_t>{100}));
  EXPECT_EQ(checkpoints(2), (std::vector<int64_t>{50, 100}));
  EXPECT_EQ(checkpoints(3), (std::vector<int64_t>{25, 50, 100}));
  EXPECT_EQ(checkpoints(4), (std::vector<int64_t>{12, 25, 50, 100}));
}

TEST_F(SchedulesTest, WsdReportsItsPeriods) {
  const auto scheduler = make<WsdScheduler>(wsd({.decay_phase_ratio = 0.2, .num_checkpoints = 2}));
  ASSERT_EQ(scheduler->periods().size(), 2U);
  EXPECT_EQ(scheduler->period_at(0).decay_begin, 40);
  EXPECT_EQ(scheduler->period_at(49).end, 50);
  EXPECT_EQ(scheduler->period_at(50).begin, 50);
  EXPECT_EQ(scheduler->period_at(50).decay_begin, 90);
  EXPECT_EQ(scheduler->period_at(1000).end, 100);
  EXPECT_EQ(scheduler->values_at(39)[0], 0.01);
  EXPECT_LT(scheduler->values_at(49)[0], 0.002);
  EXPECT_EQ(scheduler->values_at(50)[0], 0.01);
  EXPECT_LT(scheduler->values_at(99)[0], 0.002);
}

TEST_F(SchedulesTest, WsdRestoresItsCount) {
  // In pytorch-accelerated, the state did not contain the count, so a resumed schedule restarted.
  const auto function = wsd({.warmup_updates = 30});
  const auto saved = make(function);
  for (int i = 0; i < 95; ++i) saved->step();
  const auto next = lr();
  const auto restored = make(function);
  restored->load_state_dict(saved->state_dict());
  EXPECT_EQ(restored->num_updates(), 95);
  EXPECT_EQ(lr(), next);
}

TEST_F(SchedulesTest, WsdContinuesFromACheckpointOfAnotherRun) {
  const auto first = make(wsd({.warmup_updates = 20}));
  for (int i = 0; i < 90; ++i) first->step();
  const StateDict state = first->state_dict();
  set_param_group_field(*optimizer_, ParamGroupField::lr, {0.7, 0.7});
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
