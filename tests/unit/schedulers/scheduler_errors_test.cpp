#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "unit/schedulers/schedules_fixture.hpp"

namespace linkboy::testing::scheduler_errors_test {
namespace {

TEST_F(SchedulesTest, OptionsOutOfRangeAreRefused) {
  auto refused = [&](const CreateSchedulerFn& function, const char* message) {
    EXPECT_ERROR(function(*optimizer_, ten_by_ten()), message);
  };
  refused(step_decay({.step_size = 0}), "step_size (0) is 0");
  refused(step_decay({.step_size = placeholders::num_epochs / 4}),
          "(num_epochs / 4) is 2.5 in this run; a count must be an integer");
  refused(step_decay({.step_size = 100 / (placeholders::num_epochs - 10)}),
          "divides by (num_epochs - 10), which is 0");
  refused(step_decay({.step_size = placeholders::num_eval_batches_per_epoch}),
          "num_eval_batches_per_epoch has no value");
  refused(step_decay({.step_size = 3, .gamma = 0.0}), "gamma is 0");
  refused(step_decay({.step_size = 3, .gamma = NAN}), "gamma is nan");
  refused(multi_step({.milestones = std::vector<RunExpression>()}), "has no milestones");
  refused(multi_step({.milestones = {5, 9, 9}}),
          "milestones are 5, 9 and then 9; they must increase");
  refused(multi_step({.milestones = {0}}), "milestone (0) is 0");
  refused(multi_step({.milestones = {5}, .gamma = -1.0}), "gamma is -1");
  refused(constant({.factor = 1.5}), "factor is 1.5");
  refused(constant({.num_updates = -1}), "num_updates (-1) is -1");
  refused(linear({.start_factor = -0.1}), "start_factor is -0.1");
  refused(linear({.end_factor = 2.0}), "end_factor is 2");
  refused(linear({.num_updates = 0}), "num_updates (0) is 0");
  refused(exponential({.gamma = 0.0}), "gamma is 0");
  refused(polynomial({.power = 0.0}), "power is 0");
  refused(polynomial({.min_lr = -1.0}), "min_lr is -1");
  refused(polynomial({.k_decay = -1.0}), "k_decay is -1");
  refused(tanh_decay({.tanh_start = 3.0, .tanh_end = 3.0}),
          "tanh_start must be less than tanh_end");
  refused(cosine_restarts({.first_cycle_updates = 0}), "first_cycle_updates is 0");
  refused(cosine_restarts({.first_cycle_updates = 5, .num_cycles = 2}),
          "both first_cycle_updates and num_cycles");
  refused(cosine_restarts({.num_cycles = 0}), "num_cycles is 0");
  refused(cosine_restarts({.cycle_limit = 0}), "cycle_limit is 0");
  refused(cosine_restarts({.cycle_mult = 0.5}), "cycle_mult is 0.5");
  refused(cosine_restarts({.cycle_decay = 0.0}), "cycle_decay is 0");
  refused(cosine_restarts({.first_cycle_updates = 5, .warmup_updates = 5}),
          "warms up for 5 updates of a cycle of 5");
  refused(one_cycle({.num_updates = 0}), "num_updates (0) is 0");
  refused(one_cycle({.pct_start = 1.1}), "pct_start is 1.1");
  refused(one_cycle({.pct_start = 0.6, .three_phase = true}),
          "pct_start is 0.6; it must be from 0 to 0.5");
  refused(one_cycle({.div_factor = 0.0}), "div_factor is 0");
  refused(one_cycle({.max_lr = -1.0}), "max_lr is -1");
  refused(one_cycle({.max_lr = PerGroup({0.1, 0.1, 0.1, -1.0})}),
          "max_lr has 4 values, but the optimizer has 2 param groups");
  refused(one_cycle({.max_lr = PerGroup(std::vector<double>{0.1})}),
          "max_lr has 1 values, but the optimizer has 2 param groups");
  refused(one_cycle({.field = ParamGroupField::momentum}), "cycle_momentum also moves");
  refused(cyclic({.step_size_up = 0}), "step_size_up is 0");
  refused(cyclic({.step_size_down = 0}), "step_size_down is 0");
  refused(cyclic({.gamma = 0.0}), "gamma is 0");
  refused(cyclic({.base_momentum = -1.0}), "base_momentum is -1");
  refused(cyclic({.field = ParamGroupField::momentum}), "cycle_momentum also moves");
  refused(inverse_sqrt({.warmup_updates = 101}),
          "warmup_updates is 101 updates, but the run has only 100");
  refused(inverse_sqrt({.timescale = 0}), "timescale is 0");
  refused(wsd({.warmup_updates = 91}),
          "warms up for 91 updates, but its first decay begins after 90");
  refused(wsd({.decay_phase_ratio = 0.0}), "decay_phase_ratio is 0");
  refused(wsd({.decay_phase_ratio = 1.1}), "decay_phase_ratio is 1.1");
  refused(wsd({.min_lr_ratio = 2.0}), "min_lr_ratio is 2");
  refused(wsd({.decay = WsdSchedulerOptions::Decay::inverse, .min_lr_ratio = 0.0}),
          "inverse decay never reaches");
  refused(wsd({.num_checkpoints = 0}), "num_checkpoints is 0");
  refused(wsd({.num_checkpoints = 8}), "num_checkpoints is 8 in 100 updates");
  refused(lambda_schedule({}), "has 0 functions for 2 param groups");
  refused(lambda_schedule({.lr_lambda = {nullptr}}), "is empty");
  refused(sequential({.schedulers = std::vector<CreateSchedulerFn>()}),
          "0 schedulers and 0 milestones");
  refused(sequential({.schedulers = {step_decay()}, .milestones = {3}}),
          "1 schedulers and 1 milestones");
  refused(sequential(
              {.schedulers = {step_decay(), step_decay({.field = ParamGroupField::weight_decay})},
               .milestones = {3}}),
          "parts set lr and weight_decay; all parts must set the same field");
  refused(sequential({.schedulers = {nullptr}}), "is empty");
  refused(chained({.schedulers = std::vector<CreateSchedulerFn>()}),
          "has no parts; pass at least one");
  refused(chained({.schedulers = {[](auto&, const auto&) { return nullptr; }}}), "returned null");
  refused(warmup({.warmup_updates = 101}),
          "warmup_updates is 101 updates, but the run has only 100");
  refused(warmup({.warmup_updates = -1}), "warmup_updates (-1) is -1");
  refused(warmup({.warmup_start_lr = -1.0}), "warmup_start_lr is -1");
  refused(timm_schedule({.scheduler = nullptr}), "is empty");
  refused(torch_schedule({.scheduler = nullptr}), "scheduler is empty");
  refused(torch_schedule({.scheduler = [](auto&, const auto&) { return nullptr; }}),
          "returned null");
  refused(reduce_on_plateau({.monitor = ""}), "monitor is empty");
  refused(reduce_on_plateau({.factor = 1.0}), "factor is 1");
  refused(reduce_on_plateau({.patience = -1}), "patience is -1");
  refused(reduce_on_plateau({.cooldown = -1}), "cooldown is -1");
  refused(reduce_on_plateau({.threshold = -1.0}), "threshold is -1");
  refused(reduce_on_plateau({.min_lr = -1.0}), "min_lr is -1");
}

TEST_F(SchedulesTest, MomentumCannotCycleInAnOptimizerWithoutMomentum) {
  torch::optim::Adagrad adagrad({torch::zeros({1})});
  EXPECT_ERROR(one_cycle()(adagrad, ten_by_ten()), "have no momentum");
  EXPECT_ERROR(cyclic()(adagrad, ten_by_ten()), "have no momentum");
}

TEST_F(SchedulesTest, ATimeInEpochsNeedsAKnownRun) {
  const auto timm = timm_schedule({.scheduler = step_decay()});
  EXPECT_ERROR(timm(*optimizer_, RunConfig{}), "the run has 0 epochs of 0 updates");
}

TEST_F(SchedulesTest, AStateOfAnotherScheduleIsRefused) {
  const auto state_of = [&](const CreateSchedulerFn& function) {
    return make(function)->state_dict();
  };
  const auto changed = [&](const CreateSchedulerFn& function, const char* name, auto value) {
    StateDict state = state_of(function);
    state.set(name, value);
    return state;
  };
  const auto refused = [&](const CreateSchedulerFn& function, const StateDict& state,
                           const char* message, const RunConfig& config = ten_by_ten()) {
    EXPECT_ERROR(make(function, config)->load_state_dict(state), message);
  };
  const auto step = step_decay();
  const auto warm = warmup({.scheduler = step});
  const auto timm = timm_schedule({.scheduler = step});
  const auto plateau = reduce_on_plateau();
  RunConfig other_epochs = ten_by_ten();
  other_epochs.num_updates_per_epoch = 20;
  refused(step, state_of(linear()),
          "saved by another schedule (linkboy::CurveOf<linkboy::LinearSchedulerOptions>), but this "
          "run has linkboy::CurveOf<linkboy::StepSchedulerOptions>");
  refused(warm, state_of(step), "(linkboy::CurveOf<linkboy::StepSchedulerOptions>)");
  refused(multi_step({.milestones = {2, 4}}), state_of(multi_step({.milestones = {2, 4, 6}})),
          "has 3 lengths, but this schedule has 2");
  refused(timm, state_of(timm), "saved with num_updates_per_epoch = 10", other_epochs);
  refused(warm, changed(warm, "parts", 3), "does not have the states of 1 parts");
  refused(timm, changed(timm, "epoch", -2), "counts -2 epochs");
  refused(plateau, changed(plateau, "values", std::vector<double>{0.1}), "has 1 values");
  refused(linear(), changed(linear(), "lengths", StateDict{{"n", 1.0}}),
          "has no length \"num_updates\"");

  const auto exponential = make(linkboy::exponential({.gamma = 0.9}));
  EXPECT_ERROR(exponential->load_state_dict(state_of(step)),
               "(linkboy::CurveOf<linkboy::StepSchedulerOptions>)");
  exponential->allow_changed_lengths(true);
  exponential->load_state_dict(state_of(step));
}

TEST_F(SchedulesTest, ARefusedStateChangesNothing) {
  const auto saved = make(linear());
  step(*saved, 7);
  const StateDict state = saved->state_dict();
  RunConfig longer = ten_by_ten();
  longer.max_num_updates = 200;
  const auto other = make(linear(), longer);
  other->start();
  const auto before = lr();
  EXPECT_ERROR(other->load_state_dict(state), "num_updates = 100 updates, but it is 200");
  EXPECT_EQ(lr(), before);
  EXPECT_EQ(other->num_updates(), 0);
}

}  // namespace
}  // namespace linkboy::testing::scheduler_errors_test
