#include "linkboy/schedulers/scheduler_factory.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "linkboy/schedulers/cyclic_scheduler.hpp"
#include "linkboy/schedulers/linear_scheduler.hpp"
#include "linkboy/schedulers/wsd_scheduler.hpp"
#include "support/expect_error.hpp"
#include "unit/schedulers/schedules_fixture.hpp"

namespace linkboy::testing::scheduler_factory_test {
namespace {

// ---- By name
// -------------------------------------------------------------------------------------

TEST_F(SchedulesTest, AreMadeByNameFromText) {
  EXPECT_EQ(value(make_scheduler_fn("step", {{"step_size", "2*num_updates_per_epoch"}}), 19), 0.01);
  const auto cyclic = make(make_scheduler_fn(
      "cyclic", {{"max_lr", "0.5,0.25"}, {"mode", "exp_range"}, {"cycle_momentum", "false"}}));
  EXPECT_DOUBLE_EQ(cyclic->values_at(50)[1], 0.25);
  EXPECT_TRUE(cyclic->other_values_at(0).empty());
  const auto decay = make(make_scheduler_fn("linear", {{"field", "weight_decay"}}));
  EXPECT_EQ(decay->field(), ParamGroupField::weight_decay);
}

TEST_F(SchedulesTest, WhatCannotBeReadIsRefusedWithWhatThereIs) {
  EXPECT_ERROR(make_scheduler_fn("stepp", {}), "there is no scheduler \"stepp\"; there are step, ");
  EXPECT_ERROR(scheduler_options("stepp"), "there is no scheduler");
  EXPECT_ERROR(make_scheduler_fn("step", {{"size", "3"}}),
               "the scheduler step has no option \"size\"; it has step_size, gamma, field.");
  EXPECT_ERROR(make_scheduler_fn("step", {{"gamma", "x"}}),
               "step's gamma is 'x'; it must be a number.");
  EXPECT_ERROR(make_scheduler_fn("step", {{"gamma", "1"}, {"gamma", "2"}}), "a second time");
  EXPECT_ERROR(make_scheduler_fn("step", {{"step_size", "EPOCHS"}}), "there are num_epochs");
  EXPECT_ERROR(make_scheduler_fn("wsd", {{"decay", "cos"}}),
               "it must be one of sqrt, inverse, linear");
  EXPECT_ERROR(make_scheduler_fn("wsd", {{"num_checkpoints", "1.5"}}), "it must be a whole number");
  EXPECT_ERROR(make_scheduler_fn("one-cycle", {{"three_phase", "yes"}}),
               "it must be true or false");
  EXPECT_ERROR(make_scheduler_fn("multi-step", {{"milestones", "1,,2"}}), "a number");
  EXPECT_ERROR(make(make_scheduler_fn("plateau", {{"threshold", "1"}})), "threshold is 1, a share");
  make(make_scheduler_fn("plateau", {{"threshold", "1"}, {"threshold_mode", "abs"}}));
}

TEST_F(SchedulesTest, MilestonesInTextMayBeExpressionsWithCommas) {
  const auto scheduler = make(make_scheduler_fn(
      "multi-step", {{"milestones", "min(num_epochs,20),300"}, {"gamma", "0.5"}}));
  EXPECT_EQ(scheduler->values_at(9)[0], 0.01);
  EXPECT_EQ(scheduler->values_at(10)[0], 0.005);
  EXPECT_EQ(scheduler->values_at(300)[0], 0.0025);
}

}  // namespace
}  // namespace linkboy::testing::scheduler_factory_test
