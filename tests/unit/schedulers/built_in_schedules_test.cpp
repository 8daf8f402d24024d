// What is special about one schedule or another, and what each refuses.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "linkboy/run/run_history.hpp"
#include "linkboy/schedulers/chained_scheduler.hpp"
#include "linkboy/schedulers/constant_scheduler.hpp"
#include "linkboy/schedulers/cosine_restarts_scheduler.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "linkboy/schedulers/cyclic_scheduler.hpp"
#include "linkboy/schedulers/exponential_scheduler.hpp"
#include "linkboy/schedulers/inverse_sqrt_scheduler.hpp"
#include "linkboy/schedulers/lambda_scheduler.hpp"
#include "linkboy/schedulers/linear_scheduler.hpp"
#include "linkboy/schedulers/multi_step_scheduler.hpp"
#include "linkboy/schedulers/one_cycle_scheduler.hpp"
#include "linkboy/schedulers/polynomial_scheduler.hpp"
#include "linkboy/schedulers/reduce_on_plateau_scheduler.hpp"
#include "linkboy/schedulers/scheduler_factory.hpp"
#include "linkboy/schedulers/sequential_scheduler.hpp"
#include "linkboy/schedulers/step_scheduler.hpp"
#include "linkboy/schedulers/tanh_scheduler.hpp"
#include "linkboy/schedulers/timm_scheduler.hpp"
#include "linkboy/schedulers/torch_scheduler.hpp"
#include "linkboy/schedulers/warmup_scheduler.hpp"
#include "linkboy/schedulers/wsd_scheduler.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/ten_by_ten.hpp"
#include "support/toy.hpp"
#include "support/toy_optimizer.hpp"

namespace linkboy::testing::built_in_schedules_test {
namespace {

/// Schedules for an optimizer with the base learning rates 0.01 and 0.002.
class SchedulesTest : public ::testing::Test {
 protected:
  template <class S = Scheduler>
  std::unique_ptr<S> make(const CreateSchedulerFn& function,
                          const RunConfig& config = ten_by_ten()) {
    auto scheduler = function(*optimizer_, config);
    auto* derived = dynamic_cast<S*>(scheduler.get());
    if (derived != nullptr) scheduler.release();
    return std::unique_ptr<S>(derived);
  }

  /// The first group's value after `update` updates.
  double value(const CreateSchedulerFn& function, int64_t update) {
    return make(function)->values_at(update)[0];
  }

  std::vector<double> lr() { return get_param_group_field(*optimizer_, ParamGroupField::lr); }

  std::unique_ptr<torch::optim::SGD> optimizer_ = toy_sgd({0.01, 0.002}, 0.9);
};

// ---- Upstream's numbers
// --------------------------------------------------------------------------

TEST_F(SchedulesTest, WsdMeetsUpstreamsValues) {
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
  // Upstream defect 10: two checkpoints were at 25 and 50, four were three.
  auto checkpoints = [&](int64_t number) {
    return make<WsdScheduler>(wsd({.num_checkpoints = number}))->checkpoint_updates();
  };
  EXPECT_EQ(checkpoints(1), (std::vector<int64_t>{100}));
  EXPECT_EQ(checkpoints(2), (std::vector<int64_t>{50, 100}));
  EXPECT_EQ(checkpoints(3), (std::vector<int64_t>{25, 50, 100}));
  EXPECT_EQ(checkpoints(4), (std::vector<int64_t>{12, 25, 50, 100}));
}

TEST_F(SchedulesTest, WsdTellsItsPeriods) {
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
  // Upstream defect 11: its state had no count, so that a resumed schedule began anew.
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

// ---- Shapes
// --------------------------------------------------------------------------------------

TEST_F(SchedulesTest, StepTakesPlaceholders) {
  const auto function =
      step_decay({.step_size = placeholders::num_updates_per_epoch * 7, .gamma = 0.1});
  EXPECT_EQ(value(function, 69), 0.01);
  EXPECT_DOUBLE_EQ(value(function, 70), 0.001);
}

TEST_F(SchedulesTest, APlainLambdaMakesASchedulerToo) {
  const CreateSchedulerFn function = [](torch::optim::Optimizer& optimizer,
                                        const RunConfig& config) {
    return std::make_unique<LinearScheduler>(
        optimizer, LinearSchedulerOptions{.num_updates = config.max_num_updates / 2}, config);
  };
  EXPECT_EQ(value(function, 50), 0.01);
  EXPECT_LT(value(function, 49), 0.01);
}

TEST_F(SchedulesTest, CosineHasNoCliffWithWarmUpAndCoolDown) {
  // Upstream defect 9, over the whole length: no update moves it by more than the steepest slope.
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

TEST_F(SchedulesTest, CosineRestartsFillTheRunWithTheirCycles) {
  const auto scheduler = make(cosine_restarts({.num_cycles = 2,
                                               .cycle_mult = 3.0,
                                               .cycle_decay = 0.5,
                                               .warmup_updates = 5,
                                               .warmup_start_lr = 1e-4}));
  EXPECT_EQ(scheduler->values_at(0)[0], 1e-4);
  EXPECT_EQ(scheduler->values_at(5)[0], 0.01);
  EXPECT_LT(scheduler->values_at(24)[0], 1e-4);
  EXPECT_EQ(scheduler->values_at(25)[0], 1e-4);
  EXPECT_EQ(scheduler->values_at(30)[0], 0.005);
  EXPECT_LT(scheduler->values_at(99)[0], 1e-4);
}

TEST_F(SchedulesTest, OneCycleTouchesOnlyWhatItIsToldTo) {
  auto scheduler = make(one_cycle({.max_lr = PerGroup({0.5, 0.25}), .cycle_momentum = false}));
  scheduler->start();
  EXPECT_NEAR(lr()[0], 0.5 / 25, 1e-15);
  EXPECT_NEAR(lr()[1], 0.25 / 25, 1e-15);
  EXPECT_EQ(get_param_group_field(*optimizer_, ParamGroupField::momentum)[0], 0.9);
  scheduler->restore_base_values();
  scheduler = make(one_cycle());
  for (int i = 0; i < 29; ++i) scheduler->step();
  EXPECT_EQ(lr()[1], 0.002) << "without max_lr the peak is the group's own value";
  EXPECT_EQ(get_param_group_field(*optimizer_, ParamGroupField::momentum)[0], 0.85);
}

TEST_F(SchedulesTest, CyclicTakesAScaleOfOnesOwn) {
  const auto scheduler = make(cyclic({.base_lr = 0.0,
                                      .max_lr = 1.0,
                                      .step_size_up = 10,
                                      .scale_fn = [](double cycle) { return 1.0 / cycle; },
                                      .cycle_momentum = false}));
  EXPECT_DOUBLE_EQ(scheduler->values_at(10)[0], 1.0);
  EXPECT_DOUBLE_EQ(scheduler->values_at(30)[0], 0.5);
  EXPECT_DOUBLE_EQ(scheduler->values_at(50)[0], 1.0 / 3.0);
}

TEST_F(SchedulesTest, SequentialGivesEachPartItsShareOfTheRun) {
  const auto scheduler =
      make(sequential({.schedulers = {linear({.start_factor = 0.0}), cosine({.min_lr = 0.0})},
                       .milestones = {placeholders::num_updates / 5}}));
  EXPECT_EQ(scheduler->values_at(0)[0], 0.0);
  EXPECT_EQ(scheduler->values_at(20)[0], 0.01);
  EXPECT_DOUBLE_EQ(scheduler->values_at(60)[0], 0.005);
  EXPECT_EQ(scheduler->values_at(100)[0], 0.0);
}

TEST_F(SchedulesTest, ChainedMovesEachFieldByItself) {
  set_param_group_field(*optimizer_, ParamGroupField::weight_decay, {0.1, 0.0});
  const auto scheduler =
      make(chained({.schedulers = {step_decay({.step_size = 10, .gamma = 0.5}),
                                   constant({.factor = 0.5, .num_updates = 15}),
                                   linear({.start_factor = 1.0,
                                           .end_factor = 0.0,
                                           .field = ParamGroupField::weight_decay})}}));
  for (int i = 0; i < 12; ++i) scheduler->step();
  EXPECT_DOUBLE_EQ(lr()[0], 0.01 * 0.5 * 0.5);
  const auto decay = get_param_group_field(*optimizer_, ParamGroupField::weight_decay);
  EXPECT_DOUBLE_EQ(decay[0], 0.088);
  EXPECT_EQ(decay[1], 0.0);
}

TEST_F(SchedulesTest, WarmupRisesToTheFirstValueOfWhatFollows) {
  const auto scheduler =
      make(warmup({.scheduler = one_cycle({.max_lr = 0.5}), .warmup_updates = 7.5}));
  EXPECT_EQ(scheduler->values_at(0)[0], 0.0);
  EXPECT_DOUBLE_EQ(scheduler->values_at(3)[0], 0.02 * 3 / 7.5);
  EXPECT_NEAR(scheduler->values_at(8)[0], 0.02, 1e-15);
  EXPECT_DOUBLE_EQ(scheduler->values_at(99)[0], 0.02 / 1e4);
  ASSERT_EQ(scheduler->other_values_at(3).size(), 1U);
  EXPECT_EQ(scheduler->other_values_at(3)[0].values[0], 0.95);
  const auto alone = make(warmup({}));
  EXPECT_DOUBLE_EQ(alone->values_at(5)[0], 0.005);
  EXPECT_DOUBLE_EQ(alone->values_at(9)[0], 0.009);
  EXPECT_EQ(alone->values_at(10)[0], 0.01);
  EXPECT_EQ(alone->values_at(99)[0], 0.01);
}

TEST_F(SchedulesTest, PartsCountTheEpochsThatAreTheirOwn) {
  const auto timm = timm_schedule({.scheduler = cosine({.min_lr = 0.0})});
  // 5 of the 10 epochs: the last one is at 4 / 5 of the cosine.
  const double last = 0.005 * (1.0 + std::cos(std::numbers::pi * 0.8));
  const auto warm = make(warmup({.scheduler = timm, .warmup_updates = 50}));
  EXPECT_DOUBLE_EQ(warm->values_at(50)[0], 0.01);
  EXPECT_DOUBLE_EQ(warm->values_at(99)[0], last);
  const auto both =
      make(sequential({.schedulers = {timm, timm}, .milestones = {placeholders::num_updates / 2}}));
  EXPECT_DOUBLE_EQ(both->values_at(49)[0], last);
  EXPECT_DOUBLE_EQ(both->values_at(99)[0], last);
  const auto step = step_decay({.step_size = placeholders::num_epochs, .gamma = 0.5});
  const auto parts =
      make(sequential({.schedulers = {step, step}, .milestones = {35}}));  // 4 and 7 begun epochs
  EXPECT_EQ(parts->values_at(3)[0], 0.01);
  EXPECT_EQ(parts->values_at(4)[0], 0.005);
  EXPECT_EQ(parts->values_at(35 + 6)[0], 0.01);
  EXPECT_EQ(parts->values_at(35 + 7)[0], 0.005);
}

/// The first group's rate at the beginning of each of ten epochs whose metric stays the same.
std::vector<double> rates_with_a_constant_metric(Scheduler& scheduler, RunHistory& history,
                                                 const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  scheduler.run_start(history);
  scheduler.start();
  for (int epoch = 1; epoch <= 10; ++epoch) {
    rates.push_back(get_param_group_field(optimizer, ParamGroupField::lr)[0]);
    for (int update = 0; update < 10; ++update) scheduler.step();
    if (epoch != 6) history.update_metric("eval_loss_epoch", 1.0);
    scheduler.epoch_end(epoch, history, /*has_metrics=*/true);
  }
  return rates;
}

TEST_F(SchedulesTest, PlateauCountsFromItsTurnOn) {
  RunConfig config = ten_by_ten();
  config.num_eval_batches_per_epoch = 1;
  const auto plateau = reduce_on_plateau({.factor = 0.5, .patience = 1});
  InMemoryRunHistory history;
  const auto warm = make(warmup({.scheduler = plateau, .warmup_updates = 40}), config);
  // The first value of its own is epoch 4's, at whose end the warm-up is over; epoch 6 has none.
  const std::vector<double> expected{0,    0.0025, 0.005, 0.0075, 0.01,
                                     0.01, 0.01,   0.005, 0.005,  0.0025};
  const auto rates = rates_with_a_constant_metric(*warm, history, *optimizer_);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_DOUBLE_EQ(rates[i], expected[i]) << i;

  warm->restore_base_values();
  const auto constant = linkboy::constant({.factor = 1.0});
  const auto sequence =
      make(sequential({.schedulers = {constant, plateau}, .milestones = {60}}), config);
  InMemoryRunHistory other;
  EXPECT_EQ(rates_with_a_constant_metric(*sequence, other, *optimizer_),
            (std::vector<double>{0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.005}));
}

TEST_F(SchedulesTest, GroupsWithoutWeightDecayStayWithoutIt) {
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
    set_param_group_field(*optimizer_, field, {0.4, 0.0});
    const auto scheduler = make(schedule);
    for (int64_t n = 0; n <= 100; ++n) {
      EXPECT_GT(scheduler->values_at(n)[0], 0.0);
      EXPECT_EQ(scheduler->values_at(n)[1], 0.0) << n;
    }
  }
}

TEST_F(SchedulesTest, ShortPeriodsOfWsdDecayToo) {
  for (int64_t total : {2, 5, 9, 10, 19}) {
    const auto wsd = make<WsdScheduler>(linkboy::wsd({.num_updates = total}));
    EXPECT_LT(wsd->values_at(total - 1)[0], 0.01) << total;
  }
  const auto share = make<WsdScheduler>(wsd({.decay_phase_ratio = 0.29}));
  EXPECT_EQ(share->periods()[0].decay_begin, 71);
}

TEST_F(SchedulesTest, MomentumsOfOneOrMoreAreRefused) {
  const auto twice = [](int64_t) { return 2.0; };
  const auto scheduler =
      make(lambda_schedule({.lr_lambda = {twice}, .field = ParamGroupField::momentum}));
  EXPECT_ERROR(scheduler->start(),
               "momentum = 1.8 for update 1; it must be finite, not negative "
               "and below 1.");
  EXPECT_EQ(get_param_group_field(*optimizer_, ParamGroupField::momentum)[0], 0.9);
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
  EXPECT_EQ(by_epoch->values_at(19)[0], 0.01);
  EXPECT_EQ(by_epoch->values_at(20)[0], 0.005);
  by_epoch->restore_base_values();
  auto by_update = make<TimmScheduler>(timm_schedule({.scheduler = step, .t_in_epochs = false}));
  by_update->step(8);
  EXPECT_EQ(lr()[0], 0.01);
  by_update->step_update(2);
  EXPECT_EQ(lr()[0], 0.005);
  EXPECT_ERROR(by_update->step_update(-1), "stepped to update -1");
  EXPECT_ERROR(by_epoch->step(-1), "stepped to epoch -1");
}

TEST_F(SchedulesTest, TorchSchedulersFirstValueIsUsedOnce) {
  const auto scheduler = make(torch_schedule({.scheduler = [](torch::optim::Optimizer& optimizer) {
    return std::make_unique<torch::optim::StepLR>(optimizer, 3, 0.5);
  }}));
  const auto ours = make(step_decay({.step_size = 3, .gamma = 0.5}));
  for (int64_t n : {0, 1, 2, 3, 20, 7, 0, 5}) {
    EXPECT_DOUBLE_EQ(scheduler->values_at(n)[0], ours->values_at(n)[0]) << n;
    EXPECT_DOUBLE_EQ(scheduler->values_at(n)[1], ours->values_at(n)[1]) << n;
  }
}

TEST_F(SchedulesTest, PlateauIgnoresEpochsWithoutTheMetric) {
  RunConfig config = ten_by_ten();
  config.num_eval_batches_per_epoch = 3;
  const auto scheduler = make(reduce_on_plateau({.patience = 0}), config);
  InMemoryRunHistory history;
  history.update_metric("eval_loss_epoch", 0.1);  // of a run before
  scheduler->run_start(history);
  scheduler->epoch_end(1, history, /*has_metrics=*/true);
  EXPECT_EQ(lr()[0], 0.01);
  history.update_metric("eval_loss_epoch", 1.0);
  scheduler->epoch_end(2, history, /*has_metrics=*/true);
  EXPECT_EQ(lr()[0], 0.01) << "the first value of this run is its best";
  scheduler->epoch_end(3, history, /*has_metrics=*/true);
  EXPECT_EQ(lr()[0], 0.01);
  history.update_metric("eval_loss_epoch", std::nan(""));
  scheduler->epoch_end(4, history, /*has_metrics=*/true);
  EXPECT_DOUBLE_EQ(lr()[0], 0.001);
}

TEST_F(SchedulesTest, PlateauNamesTheMetricsIfItsOwnIsNotThere) {
  InMemoryRunHistory history;
  history.update_metric("train_loss_epoch", 1.0);
  const auto scheduler = make(reduce_on_plateau({.monitor = "recall"}));
  EXPECT_ERROR(scheduler->epoch_end(1, history, /*has_metrics=*/true), "train_loss_epoch");
}

TEST_F(SchedulesTest, LambdaNeedsAFunctionForEachGroupThatIsAdded) {
  auto one = [](int64_t) { return 0.5; };
  const auto scheduler = make(lambda_schedule({.lr_lambda = {one, one}}));
  optimizer_->add_param_group(
      {{torch::zeros({1})}, std::make_unique<torch::optim::SGDOptions>(0.1)});
  EXPECT_ERROR(scheduler->step(), "a param group was added");
}

// ---- What is refused
// -----------------------------------------------------------------------------

TEST_F(SchedulesTest, OptionsOutOfTheirRangeAreRefused) {
  auto refused = [&](const CreateSchedulerFn& function, const char* message) {
    EXPECT_ERROR(function(*optimizer_, ten_by_ten()), message);
  };
  refused(step_decay({.step_size = 0}), "step_size (0) is 0");
  refused(step_decay({.step_size = placeholders::num_epochs / 4}),
          "(num_epochs / 4) is 2.5 in this run; a count must be a whole number");
  refused(step_decay({.step_size = 100 / (placeholders::num_epochs - 10)}),
          "divides by (num_epochs - 10), which is 0");
  refused(step_decay({.step_size = placeholders::num_eval_batches_per_epoch}),
          "num_eval_batches_per_epoch has no value");
  refused(step_decay({.step_size = 3, .gamma = 0.0}), "gamma is 0");
  refused(step_decay({.step_size = 3, .gamma = NAN}), "gamma is nan");
  refused(make_scheduler_fn("multi-step", {}), "has no milestones");
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
  refused(one_cycle({.field = ParamGroupField::momentum}), "cycle_momentum moves it too");
  refused(cyclic({.step_size_up = 0}), "step_size_up is 0");
  refused(cyclic({.step_size_down = 0}), "step_size_down is 0");
  refused(cyclic({.gamma = 0.0}), "gamma is 0");
  refused(cyclic({.base_momentum = -1.0}), "base_momentum is -1");
  refused(cyclic({.field = ParamGroupField::momentum}), "cycle_momentum moves it too");
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
          "parts set lr and weight_decay; they must all set the same");
  refused(sequential({.schedulers = {nullptr}}), "is empty");
  refused(chained({.schedulers = std::vector<CreateSchedulerFn>()}), "has none; give at least one");
  refused(chained({.schedulers = {[](auto&, const auto&) { return nullptr; }}}), "returned null");
  refused(warmup({.warmup_updates = 101}),
          "warmup_updates is 101 updates, but the run has only 100");
  refused(warmup({.warmup_updates = -1}), "warmup_updates (-1) is -1");
  refused(warmup({.warmup_start_lr = -1.0}), "warmup_start_lr is -1");
  refused(timm_schedule({.scheduler = nullptr}), "is empty");
  refused(torch_schedule({.scheduler = nullptr}), "scheduler is empty");
  refused(torch_schedule({.scheduler = [](auto&) { return nullptr; }}), "returned null");
  refused(reduce_on_plateau({.factor = 1.0}), "factor is 1");
  refused(reduce_on_plateau({.patience = -1}), "patience is -1");
  refused(reduce_on_plateau({.cooldown = -1}), "cooldown is -1");
  refused(reduce_on_plateau({.threshold = -1.0}), "threshold is -1");
  refused(reduce_on_plateau({.min_lr = -1.0}), "min_lr is -1");
}

TEST_F(SchedulesTest, MomentumCannotCycleWhereThereIsNone) {
  torch::optim::Adagrad adagrad({torch::zeros({1})});
  EXPECT_ERROR(one_cycle()(adagrad, ten_by_ten()), "have no momentum");
  EXPECT_ERROR(cyclic()(adagrad, ten_by_ten()), "have no momentum");
}

TEST_F(SchedulesTest, ATimeInEpochsNeedsAKnownRun) {
  const auto timm = timm_schedule({.scheduler = step_decay()});
  EXPECT_ERROR(timm(*optimizer_, RunConfig{}), "the run has 0 epochs of 0 updates");
}

TEST_F(SchedulesTest, AStateOfAnotherScheduleIsRefused) {
  auto state_of = [&](const CreateSchedulerFn& function) { return make(function)->state_dict(); };
  const auto step = step_decay();
  const auto warm = warmup({.scheduler = step});
  const auto timm = timm_schedule({.scheduler = step});
  EXPECT_ERROR(make(step)->load_state_dict(state_of(linear())),
               "saved by another schedule (linkboy::LinearScheduler), but this run has "
               "linkboy::StepScheduler");
  EXPECT_ERROR(make(warm)->load_state_dict(state_of(step)), "(linkboy::StepScheduler)");
  StateDict of_0_1;  // without the class
  for (const auto& [name, entry] : state_of(step).entries()) {
    if (name != "class") of_0_1.set(name, entry);
  }
  make(step)->load_state_dict(of_0_1);
  EXPECT_ERROR(make(linear())->load_state_dict(of_0_1),
               "has no length \"num_updates\"; it was saved by another schedule");
  const auto exponential = make(linkboy::exponential({.gamma = 0.9}));
  EXPECT_ERROR(exponential->load_state_dict(state_of(step)), "(linkboy::StepScheduler)");
  exponential->allow_changed_lengths(true);
  exponential->load_state_dict(state_of(step));
  EXPECT_ERROR(make(multi_step({.milestones = {2, 4}}))
                   ->load_state_dict(state_of(multi_step({.milestones = {2, 4, 6}}))),
               "has 3 lengths, but this schedule has 2");
  RunConfig other_epochs = ten_by_ten();
  other_epochs.num_updates_per_epoch = 20;
  EXPECT_ERROR(make(timm, other_epochs)->load_state_dict(state_of(timm)),
               "saved with num_updates_per_epoch = 10");
  StateDict no_parts = state_of(warm);
  no_parts.set("parts", 3);
  EXPECT_ERROR(make(warm)->load_state_dict(no_parts), "has not the states of 1 parts");
  StateDict negative = state_of(timm);
  negative.set("epoch", -2);
  EXPECT_ERROR(make(timm)->load_state_dict(negative), "counts -2 epochs");
  const auto plateau = reduce_on_plateau();
  StateDict one_value = state_of(plateau);
  one_value.set("values", std::vector<double>{0.1});
  EXPECT_ERROR(make(plateau)->load_state_dict(one_value), "has 1 values");
}

TEST_F(SchedulesTest, ARefusedStateChangesNothing) {
  const auto saved = make(linear());
  for (int i = 0; i < 7; ++i) saved->step();
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

// ---- In a Trainer
// --------------------------------------------------------------------------------

TEST(TrainerSchedulerTest, PlateauFollowsTheEvaluationLoss) {
  class WorseAndWorse : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;

   protected:
    StepOutput calculate_eval_batch_loss(const Batch& batch) override {
      StepOutput output = QuietTrainer::calculate_eval_batch_loss(batch);
      output.loss = torch::full({}, static_cast<double>(run_history().current_epoch()));
      return output;
    }
  };
  const auto model = toy_model();
  const auto optimizer = toy_sgd(model, 0.1);
  WorseAndWorse trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                        {.callbacks = {}, .accelerator = {.device = "cpu"}});
  trainer.train({.train_dataset = toy_data(8),
                 .num_epochs = 5,
                 .eval_dataset = toy_data(4),
                 .create_scheduler_fn = reduce_on_plateau({.factor = 0.5, .patience = 1})});
  EXPECT_DOUBLE_EQ(get_param_group_field(*optimizer, ParamGroupField::lr)[0], 0.025);
}

TEST(TrainerSchedulerTest, AGroupThatACallbackAddsIsScheduledFromTheNextUpdateOn) {
  class Unfreeze : public Callback {
   public:
    void on_train_epoch_start(Trainer& trainer) override {
      if (trainer.run_history().current_epoch() != 2) return;
      trainer.optimizer()->add_param_group(
          {{torch::zeros({1}).requires_grad_()}, std::make_unique<torch::optim::SGDOptions>(0.04)});
    }
  };
  auto unfreeze = std::make_shared<Unfreeze>();
  class Spy : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;
    std::vector<std::vector<double>> used;

   protected:
    void optimizer_step() override {
      used.push_back(get_param_group_field(*optimizer(), ParamGroupField::lr));
      QuietTrainer::optimizer_step();
    }
  };
  const auto model = toy_model();
  Spy trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model, 0.1),
              {.callbacks = {unfreeze}, .accelerator = {.device = "cpu"}});
  trainer.train({.train_dataset = toy_data(8),
                 .num_epochs = 2,
                 .per_device_batch_size = 4,
                 .create_scheduler_fn = linear({.start_factor = 1.0, .end_factor = 0.0})});
  ASSERT_EQ(trainer.used.size(), 4U);
  EXPECT_EQ(trainer.used[1], (std::vector<double>{0.1 * 0.75}));
  EXPECT_EQ(trainer.used[2], (std::vector<double>{0.05, 0.02}));
  EXPECT_EQ(trainer.used[3], (std::vector<double>{0.025, 0.01}));
}

TEST(TrainerSchedulerTest, ATimmScheduleInEpochsStandsStillWithinThem) {
  class KeepRates : public Callback {
   public:
    void on_train_step_start(Trainer& trainer) override {
      rates.push_back(get_param_group_field(*trainer.optimizer(), ParamGroupField::lr)[0]);
    }
    std::vector<double> rates;
  };
  auto keep = std::make_shared<KeepRates>();
  Toy toy({keep}, 0.4);
  toy.trainer.train({.train_dataset = toy_data(6),
                     .num_epochs = 3,
                     .per_device_batch_size = 2,
                     .create_scheduler_fn =
                         timm_schedule({.scheduler = step_decay({.step_size = 1, .gamma = 0.5})})});
  EXPECT_EQ(keep->rates, (std::vector<double>{0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1}));
}

TEST(TrainerSchedulerTest, NoUpdateUsesTheValueAfterTheLastOneSoItMayBeInvalid) {
  const auto line = lambda_schedule(
      {.lr_lambda = {[](int64_t n) { return 1.0 - static_cast<double>(n) / 5.0; }}});
  const auto pole =
      lambda_schedule({.lr_lambda = {[](int64_t n) { return 1.0 / static_cast<double>(6 - n); }}});
  for (const auto& schedule : {line, pole}) {
    Toy toy({}, 0.4);
    TrainOptions options{.train_dataset = toy_data(6),
                         .num_epochs = 2,
                         .eval_dataset = toy_data(4),
                         .per_device_batch_size = 2,
                         .create_scheduler_fn = schedule};
    EXPECT_EQ(toy.trainer.train(options).num_epochs, 2);
    EXPECT_EQ(toy.trainer.run_history().get_metric_values("eval_loss_epoch").size(), 2U);
    toy.trainer.scheduler()->restore_base_values();
    EXPECT_EQ(get_param_group_field(*toy.optimizer, ParamGroupField::lr)[0], 0.4);
    options.num_epochs = 3;  // now a later update would use it
    EXPECT_THROW(toy.trainer.train(options), Error);
  }
}

TEST(TrainerSchedulerTest, ARunOfAsManyEpochsAsThereAreNumbersGoesOnUntilItIsStopped) {
  class StopAfterEpochTwo : public Callback {
   public:
    void on_training_run_epoch_end(Trainer& trainer) override {
      if (trainer.run_history().current_epoch() == 2) trainer.request_stop();
    }
  };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Toy toy({std::make_shared<StopAfterEpochTwo>()}, 0.4);
  TrainOptions options{.train_dataset = toy_data(8),
                       .num_epochs = kMost,
                       .per_device_batch_size = 2,
                       .create_scheduler_fn = step_decay({.step_size = 4})};
  EXPECT_EQ(toy.trainer.train(options).num_epochs, 2);
  EXPECT_EQ(toy.trainer.run_config().max_num_updates, kMost);
  options.create_scheduler_fn = linear();
  EXPECT_ERROR(toy.trainer.train(options), "num_updates is 9.2");
}

TEST(TrainerSchedulerTest, ALongerRunIsResumedOnlyIfThatIsAllowed) {
  const TemporaryFolder folder;
  TrainOptions options{
      .train_dataset = toy_data(8), .num_epochs = 2, .create_scheduler_fn = cosine()};
  Toy first;
  first.trainer.train(options);
  first.trainer.save_training_state(folder.path());
  Toy second;
  const auto before = copies_of(second.model->parameters());
  options.num_epochs = 4;
  options.resume_from = folder.path();
  EXPECT_ERROR(second.trainer.train(options), "was saved with total = 2 updates, but it is 4");
  EXPECT_TRUE(bit_equal(second.model->parameters(), before));
  options.allow_changed_schedule_length = true;
  EXPECT_EQ(second.trainer.train(options).num_updates, 4);
}

}  // namespace
}  // namespace linkboy::testing::built_in_schedules_test
