// Runs that use only a part of the data.

#include "linkboy/callbacks/limit_batches.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "linkboy/callbacks/callback_factory.hpp"
#include "linkboy/callbacks/step_based_evaluation.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "linkboy/trainer.hpp"
#include "support/expect_error.hpp"
#include "support/keep_losses.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::limit_batches_test {
namespace {

/// Counts the batches of training, evaluations and intermediate evaluations.
class CountBatches : public Callback {
 public:
  void on_train_step_start(Trainer&) override { ++num_train; }
  void on_train_update_end(Trainer&) override { ++num_updates; }
  void on_eval_step_start(Trainer& trainer) override {
    trainer.is_intermediate_evaluation() ? ++num_extra : ++num_eval;
  }
  int num_train = 0;
  int num_updates = 0;
  int num_eval = 0;
  int num_extra = 0;
};

/// Returns options with 5 training batches and 3 evaluation batches.
TrainOptions epochs(int64_t num_epochs) {
  return {.train_dataset = toy_data(10),
          .num_epochs = num_epochs,
          .eval_dataset = toy_data(6),
          .per_device_batch_size = 2};
}

struct Counted {
  explicit Counted(CallbackList more) : toy(with(count, std::move(more))) {}

  static CallbackList with(std::shared_ptr<Callback> count, CallbackList more) {
    more.push_back(std::move(count));
    return more;
  }

  std::shared_ptr<CountBatches> count = std::make_shared<CountBatches>();
  Toy toy;
};

TEST(LimitBatchesTest, LimitsTrainingAndEvaluationSeparately) {
  Counted both({std::make_shared<LimitBatches>(2)});
  both.toy.trainer.train(epochs(3));
  EXPECT_EQ(both.count->num_train, 6);
  EXPECT_EQ(both.count->num_eval, 6);
  Counted train({make<LimitBatches>({.num_train_batches = 4})});
  train.toy.trainer.train(epochs(1));
  EXPECT_EQ(train.count->num_train, 4);
  EXPECT_EQ(train.count->num_eval, 3);
  Counted eval({make<LimitBatches>({.num_eval_batches = 1})});
  TrainOptions options = epochs(1);
  options.more_eval_datasets = {{"more", toy_data(4)}};
  eval.toy.trainer.train(options);
  EXPECT_EQ(eval.count->num_train, 5);
  EXPECT_EQ(eval.count->num_eval, 2);  // one from each set
}

TEST(LimitBatchesTest, TheRunAndItsScheduleHaveTheLimitedLengths) {
  Toy toy({std::make_shared<LimitBatches>(3)});
  TrainOptions options = epochs(4);
  options.gradient_accumulation_steps = 2;
  options.create_scheduler_fn = cosine({.min_lr = 0.0});
  toy.trainer.train(options);
  const RunConfig& config = toy.trainer.run_config();
  EXPECT_EQ(config.num_train_batches_per_epoch, 3);
  EXPECT_EQ(config.num_eval_batches_per_epoch, 3);
  EXPECT_EQ(config.num_updates_per_epoch, 2);
  EXPECT_EQ(config.max_num_updates, 8);
  EXPECT_EQ(toy.trainer.num_updates(), 8);
  EXPECT_NEAR(toy.optimizer->param_groups()[0].options().get_lr(), 0.0, 1e-12);
}

TEST(LimitBatchesTest, ALimitAboveTheLoaderStillEndsTheLastWindow) {
  // In pytorch-accelerated, the length was wrong: 5 batches in windows of 2 made 2 updates.
  Counted run({std::make_shared<LimitBatches>(100)});
  TrainOptions options = epochs(1);
  options.gradient_accumulation_steps = 2;
  run.toy.trainer.train(options);
  EXPECT_EQ(run.count->num_train, 5);
  EXPECT_EQ(run.count->num_updates, 3);
  EXPECT_EQ(run.toy.trainer.run_config().num_updates_per_epoch, 3);
}

TEST(LimitBatchesTest, LimitsEvaluate) {
  Counted run({std::make_shared<LimitBatches>(2)});
  run.toy.trainer.evaluate({.dataset = toy_data(12), .per_device_batch_size = 2});
  EXPECT_EQ(run.count->num_eval, 2);
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
  Counted run({std::make_shared<LimitBatches>(4), second});
  run.toy.trainer.train(epochs(1));
  EXPECT_EQ(run.count->num_train, 1);
}

std::shared_ptr<StepBasedEvaluation> after_update_3() {
  return make<StepBasedEvaluation>({.every_n_updates = 3});
}

TEST(LimitBatchesTest, CanLimitOnlyIntermediateEvaluations) {
  // pytorch-accelerated does not apply a limit here.
  Counted run(
      {make<LimitBatches>({.num_intermediate_eval_batches = 1, .are_eval_limits_total = true}),
       after_update_3()});
  run.toy.trainer.train(epochs(1));
  EXPECT_EQ(run.count->num_extra, 1);
  EXPECT_EQ(run.count->num_eval, 3);
  EXPECT_EQ(run.toy.trainer.run_config().num_eval_batches_per_epoch, 3);
}

TEST(LimitBatchesTest, LimitsIntermediateEvaluationsLikeTheOthers) {
  Counted run({make<LimitBatches>({.num_eval_batches = 2}), after_update_3()});
  run.toy.trainer.train(epochs(1));
  EXPECT_EQ(run.count->num_extra, 2);
  EXPECT_EQ(run.count->num_eval, 2);
  EXPECT_EQ(run.toy.trainer.run_config().num_eval_batches_per_epoch, 2);
}

TEST(LimitBatchesTest, IntermediateEvaluationsCanHaveASeparateLimit) {
  Counted run({make<LimitBatches>({.num_eval_batches = 2, .num_intermediate_eval_batches = 1}),
               after_update_3()});
  run.toy.trainer.train(epochs(1));
  EXPECT_EQ(run.count->num_extra, 1);
  EXPECT_EQ(run.count->num_eval, 2);
}

TEST(LimitBatchesTest, ALimitOfEvaluationsAboveTheLoaderChangesNothing) {
  Counted run({make<LimitBatches>({.num_eval_batches = 50, .are_eval_limits_total = true}),
               after_update_3()});
  run.toy.trainer.train(epochs(1));
  EXPECT_EQ(run.count->num_extra, 3);
  EXPECT_EQ(run.count->num_eval, 3);
}

TEST(LimitBatchesTest, TheTextNamesOfLinkboy01AreStillRead) {
  const auto steps = make_callback("limit-eval-steps", {{"num_eval_steps", "1"}});
  EXPECT_EQ(steps->name(), "linkboy::LimitEvalSteps");
  Counted in_between({steps, after_update_3()});
  in_between.toy.trainer.train(epochs(1));
  EXPECT_EQ(in_between.count->num_extra, 1);
  EXPECT_EQ(in_between.count->num_eval, 3);

  Counted all({make_callback("limit-eval-steps",
                             {{"num_eval_steps", "2"}, {"limit_intermediate_only", "false"}}),
               after_update_3()});
  all.toy.trainer.train(epochs(1));
  EXPECT_EQ(all.count->num_extra, 2);
  EXPECT_EQ(all.count->num_eval, 2);

  const auto overfit = make_callback("overfit-batches", {{"num_batches", "2"}});
  EXPECT_EQ(overfit->name(), "linkboy::OverfitBatches");
  Counted repeated({overfit});
  repeated.toy.trainer.train(epochs(1));
  EXPECT_EQ(repeated.count->num_train, 2);
  EXPECT_EQ(repeated.count->num_eval, 2);
}

std::shared_ptr<LimitBatches> first_batches(int64_t num_batches) {
  return make<LimitBatches>({.num_train_batches = num_batches, .repeat_first_epoch = true});
}

/// Keeps the inputs of each epoch's training and evaluation.
class KeepInputs : public Callback {
 public:
  void on_train_step_end(Trainer& trainer, const Batch& batch, const StepOutput&) override {
    trained[trainer.run_history().current_epoch()].push_back(batch.input().clone());
  }
  void on_eval_step_end(Trainer& trainer, const Batch& batch, const StepOutput&) override {
    evaluated[trainer.run_history().current_epoch()].push_back(batch.input().clone());
  }
  std::map<int64_t, std::vector<torch::Tensor>> trained;
  std::map<int64_t, std::vector<torch::Tensor>> evaluated;
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
  EXPECT_EQ(toy.trainer.run_config().max_num_updates, 6);
}

TEST(RepeatFirstEpochTest, AModelOverfitsTheRepeatedBatches) {
  Toy toy({first_batches(1)}, /*lr=*/0.2);
  TrainOptions options = epochs(200);
  toy.trainer.train(options);
  EXPECT_LT(toy.trainer.run_history().get_latest_metric("eval_loss_epoch"), 0.05);
}

TEST(RepeatFirstEpochTest, WorksWithoutEvaluationDataAndInEvaluate) {
  Counted run({first_batches(1)});
  TrainOptions options = epochs(2);
  options.eval_dataset = {};
  run.toy.trainer.train(options);
  EXPECT_EQ(run.count->num_train, 2);
  EXPECT_EQ(run.count->num_eval, 0);
  run.toy.trainer.evaluate({.dataset = toy_data(6), .per_device_batch_size = 2});
  EXPECT_EQ(run.count->num_eval, 3);
}

}  // namespace
}  // namespace linkboy::testing::limit_batches_test
