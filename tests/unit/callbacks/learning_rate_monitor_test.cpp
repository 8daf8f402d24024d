// The values that LearningRateMonitor records.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/learning_rate_monitor.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/at_update.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/matchers.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::learning_rate_monitor_test {
namespace {

/// Returns options with four updates per epoch. The learning rate of update k is 0.1 / 2^(k - 1).
TrainOptions scheduled(int64_t num_epochs) {
  return {.train_dataset = toy_data(8),
          .per_device_batch_size = 2,
          .num_epochs = num_epochs,
          .create_scheduler_fn = step_decay({.step_size = 1, .gamma = 0.5})};
}

std::vector<int64_t> updates_of(const LearningRateMonitor& monitor) {
  std::vector<int64_t> updates;
  for (const auto& values : monitor.series()) updates.push_back(values.update);
  return updates;
}

TEST(LearningRateMonitorTest, RecordsTheRateOfTheLastUpdateOfEachEpoch) {
  Toy toy({std::make_shared<LearningRateMonitor>()});
  toy.train(scheduled(2));
  EXPECT_EQ(toy.values("lr"), (std::vector<double>{0.1 / 8, 0.1 / 128}));
}

TEST(LearningRateMonitorTest, NumbersTheNamesOfGroups) {
  Toy toy({std::make_shared<LearningRateMonitor>()});
  toy.optimizer->add_param_group(
      {{torch::zeros({1}).requires_grad_()}, std::make_unique<torch::optim::SGDOptions>(0.2)});
  toy.train();
  EXPECT_EQ(toy.values("lr_group_0"), std::vector<double>{0.1});
  EXPECT_EQ(toy.values("lr_group_1"), std::vector<double>{0.2});
  EXPECT_TRUE(toy.values("lr").empty());
}

TEST(LearningRateMonitorTest, RecordsMomentumAndWeightDecayOnRequest) {
  const auto model = toy_model();
  const auto optimizer = std::make_shared<torch::optim::AdamW>(
      model->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.25).betas({0.75, 0.99}));
  const auto monitor = make<LearningRateMonitor>(
      {.fields = {ParamGroupField::weight_decay, ParamGroupField::momentum}});
  auto trainer = cpu_trainer(model, {monitor}, optimizer);
  trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(trainer.run_history().get_latest_metric("weight_decay"), 0.25);
  EXPECT_EQ(trainer.run_history().get_latest_metric("momentum"), 0.75);
  EXPECT_TRUE(trainer.run_history().get_metric_values("lr").empty());
}

TEST(LearningRateMonitorTest, KeepsASeriesOfEveryNthUpdate) {
  const auto monitor = make<LearningRateMonitor>({.every_n_updates = 3});
  Toy toy({monitor});
  toy.train(scheduled(2));
  EXPECT_EQ(updates_of(*monitor), (std::vector<int64_t>{3, 6}));
  EXPECT_EQ(monitor->series()[1].fields[0].values, std::vector<double>{0.1 / 32});
}

TEST(LearningRateMonitorTest, ASecondRunStartsANewSeries) {
  const auto monitor = make<LearningRateMonitor>({.every_n_updates = 4});
  Toy toy({monitor});
  toy.train(scheduled(2));
  toy.train(scheduled(1));
  EXPECT_EQ(updates_of(*monitor), std::vector<int64_t>{4});
}

TEST(LearningRateMonitorTest, AResumedRunHasTheSeriesOfAnUninterruptedOne) {
  const TemporaryFolder folder;
  const auto every_second_update = [] { return make<LearningRateMonitor>({.every_n_updates = 2}); };
  Toy first({every_second_update(), saving_every_update(folder.path()), stop_at(4)});
  first.trainer.train(scheduled(2));

  const auto monitor = every_second_update();
  Toy second({monitor});
  second.trainer.train(resumed_from(folder / "latest", scheduled(2)));
  // After the resume, the first epoch ends without another update.
  EXPECT_EQ(second.values("lr"), (std::vector<double>{0.1 / 8, 0.1 / 128}));
  EXPECT_THAT(updates_of(*monitor), ElementsAre(2, 4, 6, 8));
  EXPECT_EQ(monitor->series()[0].fields[0].values, std::vector<double>{0.1 / 2});
}

TEST(LearningRateMonitorTest, DoesNothingInEvaluate) {
  Toy toy({std::make_shared<LearningRateMonitor>()});
  const Metrics metrics = toy.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_EQ(metrics.count("lr"), 0);
}

TEST(LearningRateMonitorTest, RejectsAFieldThatTheOptimizerLacksBeforeTheFirstUpdate) {
  const auto model = toy_model();
  const auto monitor = make<LearningRateMonitor>({.fields = {ParamGroupField::momentum}});
  auto trainer = cpu_trainer(model, {monitor},
                             std::make_shared<torch::optim::Adagrad>(model->parameters(), 0.1));
  EXPECT_ERROR(trainer.train({.train_dataset = toy_data(8), .num_epochs = 1}), "no momentum");
  EXPECT_EQ(trainer.num_updates(), 0);
}

TEST(LearningRateMonitorTest, RejectsInvalidOptionsAndStates) {
  EXPECT_ERROR(LearningRateMonitor({.fields = {}}), "fields is empty");
  EXPECT_ERROR(LearningRateMonitor({.every_n_updates = -1}), "every_n_updates is -1");
  LearningRateMonitor monitor;
  StateDict state = monitor.state_dict();
  state.set("series", 3);
  EXPECT_ERROR(monitor.load_state_dict(state), "must be a list");
}

}  // namespace
}  // namespace linkboy::testing::learning_rate_monitor_test
