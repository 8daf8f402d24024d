// Tests of individual schedules. scheduler_contract_test.cpp tests the properties of all schedules.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <numbers>

#include "linkboy/run/run_history.hpp"
#include "unit/schedulers/schedules_fixture.hpp"

namespace linkboy::testing::built_in_schedules_test {
namespace {

TEST_F(SchedulesTest, StepAcceptsPlaceholders) {
  const auto function =
      step_decay({.step_size = placeholders::num_updates_per_epoch * 7, .gamma = 0.1});
  EXPECT_EQ(value(function, 69), 0.01);
  EXPECT_DOUBLE_EQ(value(function, 70), 0.001);
}

TEST_F(SchedulesTest, APlainLambdaCanMakeAScheduler) {
  const CreateSchedulerFn function = [](torch::optim::Optimizer& optimizer,
                                        const RunConfig& config) {
    return std::make_unique<LinearScheduler>(
        optimizer, LinearSchedulerOptions{.num_updates = config.max_num_updates / 2}, config);
  };
  EXPECT_EQ(value(function, 50), 0.01);
  EXPECT_LT(value(function, 49), 0.01);
}

TEST_F(SchedulesTest, CosineRestartsFillTheRunWithTheirCycles) {
  const auto scheduler = make(cosine_restarts({.num_cycles = 2,
                                               .cycle_mult = 3.0,
                                               .cycle_decay = 0.5,
                                               .warmup_updates = 5,
                                               .warmup_start_lr = 1e-4}));
  expect_values(*scheduler, {{0, 1e-4}, {5, 0.01}, {25, 1e-4}, {30, 0.005}});
  EXPECT_LT(scheduler->values_at(24)[0], 1e-4);
  EXPECT_LT(scheduler->values_at(99)[0], 1e-4);
}

TEST_F(SchedulesTest, CosineRestartsEndsWithAnyPositiveCycle) {
  for (const double length : {1e-20, 1e-13, 0.3}) {
    for (const double mult : {1.0, 1.0 + 1e-12, 2.0}) {
      const auto scheduler =
          make(cosine_restarts({.first_cycle_updates = length, .cycle_mult = mult}));
      EXPECT_TRUE(std::isfinite(scheduler->values_at(99)[0])) << length << " times " << mult;
    }
  }
}

TEST_F(SchedulesTest, OneCycleChangesOnlyTheRequestedFields) {
  auto scheduler = make(one_cycle({.max_lr = PerGroup({0.5, 0.25}), .cycle_momentum = false}));
  scheduler->start();
  EXPECT_NEAR(lr()[0], 0.5 / 25, 1e-15);
  EXPECT_NEAR(lr()[1], 0.25 / 25, 1e-15);
  EXPECT_EQ(get(ParamGroupField::momentum)[0], 0.9);
  restore_base_values(*scheduler, *optimizer_);
  scheduler = make(one_cycle());
  step(*scheduler, 29);
  EXPECT_EQ(lr()[1], 0.002) << "without max_lr the peak is the group's own value";
  EXPECT_EQ(get(ParamGroupField::momentum)[0], 0.85);
}

TEST_F(SchedulesTest, CyclicAcceptsACustomScale) {
  const auto scheduler = make(cyclic({.base_lr = 0.0,
                                      .max_lr = 1.0,
                                      .step_size_up = 10,
                                      .scale_fn = [](double cycle) { return 1.0 / cycle; },
                                      .cycle_momentum = false}));
  expect_close_values(*scheduler, {{10, 1.0}, {30, 0.5}, {50, 1.0 / 3.0}});
}

TEST_F(SchedulesTest, CyclesWithALargerLowerEndAreUpsideDown) {
  const auto scheduler =
      make(cyclic({.base_lr = 1.0, .max_lr = 0.5, .step_size_up = 10, .cycle_momentum = false}));
  expect_close_values(*scheduler, {{0, 1.0}, {5, 0.75}, {10, 0.5}, {20, 1.0}});
}

TEST_F(SchedulesTest, SequentialGivesEachPartItsShareOfTheRun) {
  const auto scheduler =
      make(sequential({.schedulers = {linear({.start_factor = 0.0}), cosine({.min_lr = 0.0})},
                       .milestones = {placeholders::num_updates / 5}}));
  expect_values(*scheduler, {{0, 0.0}, {20, 0.01}, {100, 0.0}});
  expect_close_values(*scheduler, {{60, 0.005}});
}

TEST_F(SchedulesTest, ChainedMovesEachFieldIndependently) {
  set(ParamGroupField::weight_decay, {0.1, 0.0});
  const auto scheduler =
      make(chained({.schedulers = {step_decay({.step_size = 10, .gamma = 0.5}),
                                   constant({.factor = 0.5, .num_updates = 15}),
                                   linear({.start_factor = 1.0,
                                           .end_factor = 0.0,
                                           .field = ParamGroupField::weight_decay})}}));
  step(*scheduler, 12);
  EXPECT_DOUBLE_EQ(lr()[0], 0.01 * 0.5 * 0.5);
  const auto decay = get(ParamGroupField::weight_decay);
  EXPECT_DOUBLE_EQ(decay[0], 0.088);
  EXPECT_EQ(decay[1], 0.0);
}

TEST_F(SchedulesTest, ChainedUsesAbsoluteValuesIfTheBaseValueIsZero) {
  set(ParamGroupField::lr, {0.0, 0.002});
  set(ParamGroupField::weight_decay, {0.0, 0.1});
  const auto absolute = one_cycle({.max_lr = 0.5});
  const auto alone = make(absolute);
  for (const auto& schedulers : {std::vector<CreateSchedulerFn>{absolute, step_decay({})},
                                 {step_decay({}), absolute},
                                 {constant({.factor = 0.5}), step_decay({}), absolute}}) {
    const auto chain = make(chained({.schedulers = schedulers}));
    for (int64_t n = 0; n < 100; ++n) EXPECT_EQ(chain->values_at(n)[0], alone->values_at(n)[0]);
  }
  const auto decay =
      one_cycle({.max_lr = 0.5, .cycle_momentum = false, .field = ParamGroupField::weight_decay});
  EXPECT_EQ(make(chained({.schedulers = {decay}}))->values_at(20)[0], 0.0);
}

TEST_F(SchedulesTest, NoValueIsBelowTheMinimum) {
  constexpr double kMinimum = 0.004;  // between the base values of the groups
  InMemoryRunHistory history;
  for (const auto& [name, function] : std::vector<std::pair<std::string, CreateSchedulerFn>>{
           {"cosine", cosine({.min_lr = kMinimum, .cooldown_updates = 10})},
           {"restarts", cosine_restarts({.num_cycles = 5, .cycle_decay = 0.5, .min_lr = kMinimum})},
           {"longer restarts", cosine_restarts({.first_cycle_updates = 7,
                               .cycle_mult = 1.5,
                               .cycle_decay = 0.1,
                               .cycle_limit = 4,
                               .min_lr = kMinimum})},
           {"warm restarts", cosine_restarts({.num_cycles = 5,
                             .cycle_decay = 0.5,
                             .min_lr = kMinimum,
                             .warmup_updates = 5,
                             .warmup_start_lr = kMinimum})},
           {"polynomial", polynomial({.power = 3.0, .min_lr = kMinimum})},
           {"tanh", tanh_decay({.min_lr = kMinimum})},
           {"wsd", wsd({.min_lr_ratio = 0.4})},
           {"plateau", reduce_on_plateau({.factor = 0.3, .patience = 0, .min_lr = kMinimum})},
           {"cyclic", cyclic({.base_lr = kMinimum,
                      .max_lr = 0.01,
                      .step_size_up = 7,
                      .mode = CyclicSchedulerOptions::Mode::exp_range,
                      .gamma = 0.9,
                      .cycle_momentum = false})}}) {
    SCOPED_TRACE(name);
    const auto scheduler = make(function);
    for (int64_t n = 0; n <= 300; ++n) {
      EXPECT_GE(scheduler->values_at(n)[0], kMinimum) << "after update " << n;
      // A smaller base value may rise to the minimum, but does not fall.
      EXPECT_GE(scheduler->values_at(n)[1], name == "wsd" ? 0.0008 : 0.002);
      history.update_metric("eval_loss_epoch", static_cast<double>(n));
      scheduler->epoch_end(n, history, /*has_metrics=*/true);
    }
  }
}

TEST_F(SchedulesTest, WarmupRisesToTheFirstValueOfTheNextSchedule) {
  const auto scheduler =
      make(warmup({.scheduler = one_cycle({.max_lr = 0.5}), .warmup_updates = 7.5}));
  EXPECT_EQ(scheduler->values_at(0)[0], 0.0);
  expect_close_values(*scheduler, {{3, 0.02 * 3 / 7.5}, {99, 0.02 / 1e4}});
  EXPECT_NEAR(scheduler->values_at(8)[0], 0.02, 1e-15);
  ASSERT_EQ(scheduler->other_values_at(3).size(), 1U);
  EXPECT_EQ(scheduler->other_values_at(3)[0].values[0], 0.95);
  const auto alone = make(warmup({}));
  expect_close_values(*alone, {{5, 0.005}, {9, 0.009}});
  expect_values(*alone, {{10, 0.01}, {99, 0.01}});
}

TEST_F(SchedulesTest, PartsCountTheirOwnEpochs) {
  const auto timm = timm_schedule({.scheduler = cosine({.min_lr = 0.0})});
  // The part has 5 of the 10 epochs. In its last epoch, it is at 4 / 5 of the cosine.
  const double last = 0.005 * (1.0 + std::cos(std::numbers::pi * 0.8));
  const auto warm = make(warmup({.scheduler = timm, .warmup_updates = 50}));
  expect_close_values(*warm, {{50, 0.01}, {99, last}});
  const auto both =
      make(sequential({.schedulers = {timm, timm}, .milestones = {placeholders::num_updates / 2}}));
  expect_close_values(*both, {{49, last}, {99, last}});
  const auto step = step_decay({.step_size = placeholders::num_epochs, .gamma = 0.5});
  const auto parts =
      make(sequential({.schedulers = {step, step}, .milestones = {35}}));  // 3.5 and 6.5 epochs
  expect_values(*parts, {{3, 0.01}, {4, 0.005}, {35 + 6, 0.01}, {35 + 7, 0.005}});
}

TEST_F(SchedulesTest, GroupsWithoutWeightDecayKeepZeroDecay) {
  const auto field = ParamGroupField::weight_decay;
  const auto polynomial = linkboy::polynomial({.min_lr = 0.04, .field = field});
  const std::vector<CreateSchedulerFn> schedules{
      polynomial,
      cosine({.min_lr = 0.04,
              .warmup_updates = 2 * placeholders::num_updates_per_epoch,
              .warmup_start_lr = 0.01,
              .field = field}),
      warmup({.scheduler = polynomial, .warmup_start_lr = 0.02}),
      cyclic({.max_lr = 0.5, .cycle_momentum = false, .field = field}),
      one_cycle({.max_lr = 0.5, .cycle_momentum = false, .field = field})};
  for (const auto& schedule : schedules) {
    set(field, {0.4, 0.0});
    const auto scheduler = make(schedule);
    for (int64_t n = 0; n <= 100; ++n) {
      EXPECT_GT(scheduler->values_at(n)[0], 0.0);
      EXPECT_EQ(scheduler->values_at(n)[1], 0.0) << n;
    }
  }
}

TEST_F(SchedulesTest, NaNValuesNeverReachTheOptimizer) {
  const auto broken = [](int64_t update) { return update == 2 ? NAN : 10.0; };
  const auto scheduler = make(lambda_schedule({.lr_lambda = {broken}}));
  step(*scheduler, 1);
  EXPECT_ERROR(scheduler->step(), "returns lr = nan for update 3");
  EXPECT_EQ(lr()[0], 0.1);
}

TEST_F(SchedulesTest, MomentumsOfOneOrMoreAreRefused) {
  const auto twice = [](int64_t) { return 2.0; };
  const auto scheduler =
      make(lambda_schedule({.lr_lambda = {twice}, .field = ParamGroupField::momentum}));
  EXPECT_ERROR(scheduler->start(),
               "momentum = 1.8 for update 1; it must be finite, not negative "
               "and below 1.");
  EXPECT_EQ(get(ParamGroupField::momentum)[0], 0.9);
  EXPECT_ERROR(scheduler->check_values_at(6), "for update 7");
}

TEST_F(SchedulesTest, TimmStepsByEpochOrByUpdate) {
  const auto step = step_decay({.step_size = 2, .gamma = 0.5});
  auto by_epoch = make<TimmScheduler>(timm_schedule({.scheduler = step}));
  by_epoch->start();
  by_epoch->step_update(10);
  EXPECT_EQ(lr()[0], 0.01);
  by_epoch->step(2);
  EXPECT_EQ(lr()[0], 0.005);
  expect_values(*by_epoch, {{19, 0.01}, {20, 0.005}});
  restore_base_values(*by_epoch, *optimizer_);
  auto by_update = make<TimmScheduler>(timm_schedule({.scheduler = step, .t_in_epochs = false}));
  by_update->step(8);
  EXPECT_EQ(lr()[0], 0.01);
  by_update->step_update(2);
  EXPECT_EQ(lr()[0], 0.005);
  EXPECT_ERROR(by_update->step_update(-1), "stepped to update -1");
  EXPECT_ERROR(by_epoch->step(-1), "stepped to epoch -1");
}

TEST_F(SchedulesTest, LambdaNeedsAFunctionForEachAddedGroup) {
  auto one = [](int64_t) { return 0.5; };
  const auto scheduler = make(lambda_schedule({.lr_lambda = {one, one}}));
  optimizer_->add_param_group(
      {{torch::zeros({1})}, std::make_unique<torch::optim::SGDOptions>(0.1)});
  EXPECT_ERROR(scheduler->step(), "a param group was added");
}

}  // namespace
}  // namespace linkboy::testing::built_in_schedules_test
