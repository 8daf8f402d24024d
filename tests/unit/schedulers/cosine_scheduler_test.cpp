#include "linkboy/schedulers/cosine_scheduler.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <numbers>

#include "linkboy/run/run_config.hpp"
#include "linkboy/scheduler.hpp"
#include "linkboy/schedulers/warmup_scheduler.hpp"
#include "support/expect_error.hpp"
#include "support/ten_by_ten.hpp"
#include "unit/schedulers/schedules_fixture.hpp"

namespace linkboy::testing::cosine_scheduler_test {
namespace {

class CosineSchedulerTest : public ::testing::Test {
 protected:
  CosineSchedulerTest() { add_group(0.01); }

  void add_group(double lr) {
    auto parameter = torch::zeros({1}).requires_grad_();
    auto options = std::make_unique<torch::optim::SGDOptions>(lr);
    torch::optim::OptimizerParamGroup group({parameter}, std::move(options));
    if (optimizer_) {
      optimizer_->add_param_group(group);
    } else {
      optimizer_ = std::make_unique<torch::optim::SGD>(
          std::vector<torch::optim::OptimizerParamGroup>{group}, torch::optim::SGDOptions(lr));
    }
  }

  std::unique_ptr<Scheduler> make(const CosineSchedulerOptions& options) {
    return cosine(options)(*optimizer_, ten_by_ten());
  }

  std::unique_ptr<torch::optim::SGD> optimizer_;
};

TEST_F(CosineSchedulerTest, EqualsTheValuesOfPytorchAccelerated) {
  auto scheduler = make({});
  EXPECT_DOUBLE_EQ(scheduler->values_at(0)[0], 0.01);
  EXPECT_DOUBLE_EQ(scheduler->values_at(1)[0], 0.009997533048548475);
  EXPECT_DOUBLE_EQ(scheduler->values_at(50)[0], 0.005000500000000001);
  EXPECT_NEAR(scheduler->values_at(99)[0], 3.466951451524866e-06, 1e-17);
  EXPECT_DOUBLE_EQ(scheduler->values_at(100)[0], 1e-6);
  EXPECT_DOUBLE_EQ(make({.k_decay = 2.0})->values_at(50)[0], 0.008535680352542143);
}

TEST_F(CosineSchedulerTest, WarmsUpLinearlyWithoutAJump) {
  // In pytorch-accelerated, a warm-up of W updates let the curve end W updates early.
  auto scheduler = make({.warmup_updates = 2 * placeholders::num_updates_per_epoch});
  EXPECT_DOUBLE_EQ(scheduler->values_at(0)[0], 1e-6);
  EXPECT_DOUBLE_EQ(scheduler->values_at(1)[0], 5.0095e-4);
  EXPECT_DOUBLE_EQ(scheduler->values_at(19)[0], 0.00950005);
  EXPECT_DOUBLE_EQ(scheduler->values_at(20)[0], 0.01);
  EXPECT_DOUBLE_EQ(scheduler->values_at(60)[0], 0.0050005);
  EXPECT_NEAR(scheduler->values_at(79)[0], 0.0016068356727080588, 1e-17);
  EXPECT_GT(scheduler->values_at(80)[0], 0.0014);
  EXPECT_DOUBLE_EQ(scheduler->values_at(100)[0], 1e-6);
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
  const auto scheduler = cosine()(*optimizer_, config);
  EXPECT_GT(scheduler->values_at(94)[0], 1e-6);
  EXPECT_EQ(scheduler->values_at(95)[0], 1e-6);
}

TEST_F(CosineSchedulerTest, MovesEveryGroupFromItsOwnBaseValue) {
  add_group(0.002);
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

TEST_F(CosineSchedulerTest, StartsAtTheFirstValueAndMovesOneUpdateAStep) {
  auto scheduler = make({});
  scheduler->start();
  EXPECT_EQ(get_param_group_field(*optimizer_, ParamGroupField::lr), scheduler->values_at(0));
  for (int64_t k = 1; k <= 100; ++k) {
    scheduler->step();
    EXPECT_EQ(get_param_group_field(*optimizer_, ParamGroupField::lr), scheduler->values_at(k));
  }
  EXPECT_EQ(scheduler->num_updates(), 100);
}

TEST_F(CosineSchedulerTest, ARestoredStateContinuesWithTheExactNextValue) {
  auto scheduler = make({.warmup_updates = 1 * placeholders::num_updates_per_epoch});
  for (int i = 0; i < 37; ++i) scheduler->step();
  const StateDict state = scheduler->state_dict();
  scheduler->step();
  const auto next = get_param_group_field(*optimizer_, ParamGroupField::lr);
  set_param_group_field(*optimizer_, ParamGroupField::lr, {0.7});
  auto restored = make({.warmup_updates = 1 * placeholders::num_updates_per_epoch});
  restored->load_state_dict(state);
  restored->step();
  EXPECT_EQ(get_param_group_field(*optimizer_, ParamGroupField::lr), next);
}

TEST_F(CosineSchedulerTest, RejectsAStateThatDoesNotFit) {
  auto scheduler = make({});
  EXPECT_ERROR(scheduler->load_state_dict({{"num_updates", 3}}), "no \"base_values\"");
  StateDict two_groups = scheduler->state_dict();
  StateDict two_values;
  two_values.set("lr", std::vector<double>{0.1, 0.2});
  two_groups.set("base_values", two_values);
  EXPECT_ERROR(scheduler->load_state_dict(two_groups), "has 2 param groups");
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
  set_param_group_field(*optimizer_, ParamGroupField::weight_decay, {0.1});
  auto scheduler = make({.min_lr = 0.0, .field = ParamGroupField::weight_decay});
  for (int i = 0; i < 50; ++i) scheduler->step();
  EXPECT_NEAR(get_param_group_field(*optimizer_, ParamGroupField::weight_decay)[0], 0.05, 1e-12);
  EXPECT_EQ(get_param_group_field(*optimizer_, ParamGroupField::lr)[0], 0.01);
}

TEST_F(CosineSchedulerTest, NaNValuesNeverReachTheOptimizer) {
  class Broken : public Scheduler {
   public:
    explicit Broken(torch::optim::Optimizer& optimizer) : Scheduler(optimizer) {}
    std::vector<double> values_at(int64_t update) const override {
      return {update == 2 ? std::nan("") : 0.1};
    }
  };
  Broken scheduler(*optimizer_);
  scheduler.start();
  scheduler.step();
  EXPECT_ERROR(scheduler.step(), "returns lr = nan for update 3");
  EXPECT_EQ(get_param_group_field(*optimizer_, ParamGroupField::lr)[0], 0.1);
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
