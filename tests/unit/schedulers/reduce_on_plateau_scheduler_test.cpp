#include "linkboy/schedulers/reduce_on_plateau_scheduler.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "linkboy/run/run_history.hpp"
#include "unit/schedulers/schedules_fixture.hpp"

namespace linkboy::testing::reduce_on_plateau_scheduler_test {
namespace {

TEST(ReduceOnPlateauTest, ValuesWithinTheCoolDownDoNotCount) {
  const auto optimizer = sgd_with_rates({0.8}, 0.9);
  ReduceOnPlateauScheduler scheduler(*optimizer, {.factor = 0.5, .patience = 1, .cooldown = 2},
                                     ten_by_ten());
  std::vector<double> rates;
  for (int i = 0; i < 9; ++i) {
    scheduler.step_metric(1.0);
    rates.push_back(get_param_group_field(*optimizer, ParamGroupField::lr)[0]);
  }
  // The first value is the best. Two bad values reduce the rate, and the next two are ignored.
  EXPECT_EQ(rates, (std::vector<double>{0.8, 0.8, 0.4, 0.4, 0.4, 0.4, 0.2, 0.2, 0.2}));
}

/// Returns the first group's rate at the beginning of each of ten epochs. The metric is constant
/// and missing in epoch 6.
std::vector<double> rates_with_a_constant_metric(Scheduler& scheduler,
                                                 const torch::optim::Optimizer& optimizer) {
  InMemoryRunHistory history;
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

TEST_F(SchedulesTest, PlateauCountsOnlyWithinItsPartOfASequence) {
  RunConfig config = ten_by_ten();
  config.num_eval_batches_per_epoch = 1;
  const auto plateau = reduce_on_plateau({.factor = 0.5, .patience = 1});
  const auto warm = make(warmup({.scheduler = plateau, .warmup_updates = 40}), config);
  // The warm-up ends with epoch 4, so the plateau's first value is that of epoch 4. Epoch 6 has
  // none.
  const std::vector<double> expected{0,    0.0025, 0.005, 0.0075, 0.01,
                                     0.01, 0.01,   0.005, 0.005,  0.0025};
  const auto rates = rates_with_a_constant_metric(*warm, *optimizer_);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_DOUBLE_EQ(rates[i], expected[i]) << i;

  restore_base_values(*warm, *optimizer_);
  const auto constant = linkboy::constant({.factor = 1.0});
  const auto sequence =
      make(sequential({.schedulers = {constant, plateau}, .milestones = {60}}), config);
  EXPECT_EQ(rates_with_a_constant_metric(*sequence, *optimizer_),
            (std::vector<double>{0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.005}));
}

TEST_F(SchedulesTest, PlateauIgnoresEpochsWithoutTheMetric) {
  RunConfig config = ten_by_ten();
  config.num_eval_batches_per_epoch = 3;
  const auto scheduler = make(reduce_on_plateau({.patience = 0}), config);
  InMemoryRunHistory history;
  history.update_metric("eval_loss_epoch", 0.1);  // from a previous run
  scheduler->run_start(history);
  const auto lr_after_epoch = [&](int64_t epoch) {
    scheduler->epoch_end(epoch, history, /*has_metrics=*/true);
    return lr()[0];
  };
  EXPECT_EQ(lr_after_epoch(1), 0.01);
  history.update_metric("eval_loss_epoch", 1.0);
  EXPECT_EQ(lr_after_epoch(2), 0.01) << "the first value of this run is its best";
  EXPECT_EQ(lr_after_epoch(3), 0.01);
  history.update_metric("eval_loss_epoch", std::nan(""));
  EXPECT_DOUBLE_EQ(lr_after_epoch(4), 0.001);
}

TEST_F(SchedulesTest, PlateauErrorsListTheMetricsIfItsMetricIsMissing) {
  InMemoryRunHistory history;
  history.update_metric("train_loss_epoch", 1.0);
  const auto scheduler = make(reduce_on_plateau({.monitor = "recall"}));
  EXPECT_ERROR(scheduler->epoch_end(1, history, /*has_metrics=*/true), "train_loss_epoch");
}

}  // namespace
}  // namespace linkboy::testing::reduce_on_plateau_scheduler_test
