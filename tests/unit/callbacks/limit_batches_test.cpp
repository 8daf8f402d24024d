// Runs that use only a part of the data.

#include "linkboy/callbacks/limit_batches.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <array>

#include <map>

#include "linkboy/callbacks/callback_factory.hpp"
#include "linkboy/callbacks/step_based_evaluation.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::limit_batches_test {
namespace {

/// The number of batches of training, evaluations and intermediate evaluations.
using Batches = std::array<int, 3>;

class CountBatches : public Callback {
 public:
  void on_train_step_start(Trainer&) override { ++count[0]; }
  void on_eval_step_start(Trainer& trainer) override {
    ++count[trainer.run().is_intermediate_evaluation() ? 2 : 1];
  }
  Batches count{};
};

/// Returns options with 5 training batches and 3 evaluation batches.
TrainOptions epochs(int64_t num_epochs) {
  return {.train_dataset = toy_data(10),
          .eval_dataset = toy_data(6),
          .per_device_batch_size = 2,
          .num_epochs = num_epochs};
}

/// A toy with limits that evaluates also after every third update of a run.
struct Limited {
  explicit Limited(std::shared_ptr<Callback> limit)
      : toy({count, std::move(limit), make<StepBasedEvaluation>({.every_n_updates = 3})}) {}
  explicit Limited(LimitBatchesOptions options) : Limited(make<LimitBatches>(options)) {}

  Batches train(const TrainOptions& options = epochs(1)) {
    count->count = {};
    toy.trainer.train(options);
    return count->count;
  }

  std::shared_ptr<CountBatches> count = std::make_shared<CountBatches>();
  Toy toy;
};

TEST(LimitBatchesTest, LimitsTrainingEvaluationAndIntermediateEvaluationSeparately) {
  for (
      const auto& [options, expected] : std::vector<std::pair<LimitBatchesOptions, Batches>>{
          {{.num_train_batches = 4}, {4, 3, 3}},
          // Intermediate evaluations have the same limit as the others, unless they have their own.
          {{.num_eval_batches = 2}, {5, 2, 2}},
          {{.num_eval_batches = 2, .num_intermediate_eval_batches = 1}, {5, 2, 1}},
          // pytorch-accelerated does not apply this limit.
          {{.num_intermediate_eval_batches = 1, .are_eval_limits_total = true}, {5, 3, 1}},
          {{.num_eval_batches = 50, .are_eval_limits_total = true}, {5, 3, 3}}}) {
    Limited run(options);
    EXPECT_EQ(run.train(), expected);
    EXPECT_EQ(run.toy.trainer.run().config().num_eval_batches_per_epoch, expected[1]);
  }
  EXPECT_EQ(Limited(std::make_shared<LimitBatches>(2)).train(epochs(3)), (Batches{6, 6, 4}));
}

TEST(LimitBatchesTest, LimitsEachEvaluationSetAndEvaluate) {
  TrainOptions options = epochs(1);
  options.more_eval_datasets = {{"more", toy_data(4)}};
  Limited run({.num_eval_batches = 1});
  EXPECT_EQ(run.train(options)[1], 2);
  run.toy.trainer.evaluate({.dataset = toy_data(12), .per_device_batch_size = 2});
  EXPECT_EQ(run.count->count[1], 3);
}

TEST(LimitBatchesTest, TheRunAndItsScheduleHaveTheLimitedLengths) {
  Toy toy({std::make_shared<LimitBatches>(3)});
  TrainOptions options = epochs(4);
  options.gradient_accumulation_steps = 2;
  options.create_scheduler_fn = cosine({.min_lr = 0.0});
  toy.trainer.train(options);
  const RunConfig& config = toy.trainer.run().config();
  EXPECT_EQ(config.num_train_batches_per_epoch, 3);
  EXPECT_EQ(config.num_eval_batches_per_epoch, 3);
  EXPECT_EQ(config.num_updates_per_epoch, 2);
  EXPECT_EQ(config.max_num_updates, 8);
  EXPECT_EQ(toy.trainer.num_updates(), 8);
  EXPECT_NEAR(toy.optimizer->param_groups()[0].options().get_lr(), 0.0, 1e-12);
}

TEST(LimitBatchesTest, ALimitAboveTheLoaderStillEndsTheLastWindow) {
  // In pytorch-accelerated, the length was wrong: 5 batches in windows of 2 made 2 updates.
  Limited run(std::make_shared<LimitBatches>(100));
  TrainOptions options = epochs(1);
  options.gradient_accumulation_steps = 2;
  EXPECT_EQ(run.train(options)[0], 5);
  EXPECT_EQ(run.toy.trainer.num_updates(), 3);
  EXPECT_EQ(run.toy.trainer.run().config().num_updates_per_epoch, 3);
}

TEST(LimitBatchesTest, RejectsLimitsBelowOne) {
  EXPECT_ERROR(LimitBatches(0), "num_train_batches is 0");
  EXPECT_ERROR((LimitBatches{{.num_eval_batches = -1}}), "num_eval_batches is -1");
  EXPECT_ERROR((LimitBatches{{.num_intermediate_eval_batches = 0}}),
               "num_intermediate_eval_batches is 0");
}

TEST(LimitBatchesTest, TheLowerOfTwoLimitsApplies) {
  auto second = std::make_shared<LimitBatches>(1);
  second->set_name("second");
  Limited run(std::make_shared<LimitBatches>(4));
  run.toy.trainer.callback_handler().add(second);
  EXPECT_EQ(run.train()[0], 1);
}

std::shared_ptr<LimitBatches> first_batches(int64_t num_batches) {
  return make<LimitBatches>({.num_train_batches = num_batches, .repeat_first_epoch = true});
}

/// Keeps the inputs of each epoch's training and evaluation.
class KeepInputs : public Callback {
 public:
  using InputsOfEpochs = std::map<int64_t, std::vector<torch::Tensor>>;

  void on_train_step_end(Trainer& trainer, const Batch& batch, const StepOutput&) override {
    keep(trained, trainer, batch);
  }
  void on_eval_step_end(Trainer& trainer, const Batch& batch, const StepOutput&) override {
    keep(evaluated, trainer, batch);
  }
  InputsOfEpochs trained, evaluated;

 private:
  static void keep(InputsOfEpochs& inputs, const Trainer& trainer, const Batch& batch) {
    inputs[trainer.run_history().current_epoch()].push_back(batch.input().clone());
  }
};

TEST(RepeatFirstEpochTest, TrainsAndEvaluatesOnTheFirstBatchesOfTheFirstEpoch) {
  const TrainOptions options = epochs(3);
  auto plain = std::make_shared<KeepInputs>();
  torch::manual_seed(4);
  Toy whole({plain});
  whole.trainer.train(options);
  ASSERT_FALSE(bit_equal(plain->trained[1], plain->trained[2]));  // the data is shuffled

  auto keep = std::make_shared<KeepInputs>();
  torch::manual_seed(4);
  Toy toy({keep, first_batches(2)});
  toy.trainer.train(options);
  const std::vector<torch::Tensor> first{plain->trained[1][0], plain->trained[1][1]};
  for (int64_t epoch = 1; epoch <= 3; ++epoch) {
    EXPECT_TRUE(bit_equal(keep->trained[epoch], first)) << epoch;
    EXPECT_TRUE(bit_equal(keep->evaluated[epoch], first)) << epoch;
  }
  EXPECT_EQ(toy.trainer.run().config().max_num_updates, 6);
}

TEST(RepeatFirstEpochTest, AModelOverfitsTheRepeatedBatches) {
  Toy toy({first_batches(1)}, /*lr=*/0.2);
  toy.trainer.train(epochs(200));
  EXPECT_LT(toy.trainer.run_history().get_latest_metric("eval_loss_epoch"), 0.05);
}

TEST(RepeatFirstEpochTest, WorksWithoutEvaluationDataAndInEvaluate) {
  auto count = std::make_shared<CountBatches>();
  Toy toy({count, first_batches(1)});
  TrainOptions options = epochs(2);
  options.eval_dataset = {};
  toy.trainer.train(options);
  EXPECT_EQ(count->count, (Batches{2, 0, 0}));
  toy.trainer.evaluate({.dataset = toy_data(6), .per_device_batch_size = 2});
  EXPECT_EQ(count->count, (Batches{2, 3, 0}));
}

}  // namespace
}  // namespace linkboy::testing::limit_batches_test
