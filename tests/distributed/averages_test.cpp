// Averages of weights, and limited evaluations, on several ranks.

#include "support/averages.hpp"
#include "distributed/ranks.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/limit_batches.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/step_based_evaluation.hpp"
#include "linkboy/callbacks/stochastic_weight_averaging.hpp"

namespace linkboy::testing::averages_test {
namespace {

TrainOptions four_epochs() {
  TrainOptions options = run_of({.updates_per_epoch = 3, .num_epochs = 4});
  options.eval_dataset = toy_data(4 * num_ranks() + 1);
  return options;
}

TEST(AveragesTest, TheMovingAverageIsTheSameOnAllRanksAndRank0WritesIt) {
  const TemporaryFolder folder;
  auto ema = make<ModelEma>({.path = folder / "ema.pt"});
  RankToy toy(together(), {ema});
  toy.trainer.train(four_epochs());
  EXPECT_EQ(ema->num_averaged(), 12);
  EXPECT_TRUE(same_on_all_ranks(toy.accelerator(), tensors_of(ema->averaged_model_state())));
  const auto losses = toy.trainer.run_history().get_metric_values("ema_model_eval_loss_epoch");
  EXPECT_EQ(losses.size(), 4U);
  EXPECT_TRUE(same_on_all_ranks(toy.accelerator(), {torch::tensor(losses)}));
  EXPECT_EQ(folder.names().size(), this_rank() == 0 ? 1U : 0U);
}

TEST(AveragesTest, AStopRequestDuringTheEvaluationOfTheAverageStopsAllRanks) {
  auto ema = std::make_shared<ModelEma>();
  const auto stop_on_last_rank = make<LambdaCallback>({.on_eval_epoch_start = [](Trainer& trainer) {
    if (trainer.run().is_intermediate_evaluation() && is_last_rank()) trainer.request_stop();
  }});
  RankToy toy(together(), {ema, stop_on_last_rank});
  EXPECT_EQ(toy.trainer.train(four_epochs()).reason, StopReason::stop_request);
  EXPECT_TRUE(same_on_all_ranks(toy));
  EXPECT_FALSE(bit_equal(toy.parameters(), tensors_of(ema->averaged_model_state())));
}

TEST(AveragesTest, StochasticAveragesUseTheStatisticsOfAllRanks) {
  namespace nn = torch::nn;
  torch::manual_seed(2);
  const nn::BatchNorm1d norm(4);
  nn::Sequential model(norm, nn::Linear(4, 3));
  QuietTrainer trainer(model, nn::CrossEntropyLoss(), toy_sgd(model),
                       {.callbacks = {std::make_shared<StochasticWeightAveraging>()},
                        .default_callbacks = {},
                        .accelerator = together()});
  auto& accelerator = trainer.accelerator();
  const auto options = four_epochs();
  trainer.train(options);
  EXPECT_TRUE(same_on_all_ranks(accelerator, model->parameters()));
  EXPECT_TRUE(same_on_all_ranks(accelerator, {norm->running_mean, norm->running_var}));
  // All batches have the same size, so the mean of their means is the mean over all samples.
  const auto inputs = toy_inputs(options.train_dataset.size()).to(accelerator.device());
  EXPECT_TRUE(torch::allclose(norm->running_mean, inputs.mean(0), 1e-4, 1e-5));
  EXPECT_EQ(trainer.run_history().get_metric_values("swa_model_eval_loss_epoch").size(), 1U);
}

TEST(AveragesTest, LimitedEvaluationsCountTheBatchesOfAllRanks) {
  for (const int64_t limit : {1, 3}) {
    SCOPED_TRACE(limit);
    int64_t num_batches = 0;
    const auto count = make<LambdaCallback>({.on_eval_step_start = [&](Trainer& trainer) {
      if (trainer.run().is_intermediate_evaluation()) ++num_batches;
    }});
    RankToy toy(together(), {count,
                             make<LimitBatches>({.num_intermediate_eval_batches = limit,
                                                 .are_eval_limits_total = true}),
                             make<StepBasedEvaluation>({.every_n_updates = 12})});
    auto options = four_epochs();
    options.eval_dataset = toy_data(64);
    toy.trainer.train(options);
    const auto sum = toy.accelerator().reduce(torch::tensor({num_batches}), ReduceOp::sum);
    EXPECT_EQ(sum.item<int64_t>(), limit);
  }
}

TEST(AveragesTest, AResumedRunHasTheAverageOfEachRank) {
  // With local SGD, the weights differ; without it, the batch-norm statistics do.
  for (const int64_t interval : {0, 5}) {
    SCOPED_TRACE(interval);
    const SharedFolder folder;
    const auto options = [](int64_t num_epochs) {
      TrainOptions options = run_of({.updates_per_epoch = 3, .num_epochs = num_epochs});
      options.train_dataloader_options.seed = 5;
      return options;
    };
    const auto train = [&](const TrainOptions& run, bool saves) {
      torch::manual_seed(2);
      torch::nn::Sequential model(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8),
                                  torch::nn::Linear(8, 3));
      auto ema = make<ModelEma>({.decay = 0.7, .evaluate = false});
      DistributedOptions distributed;
      distributed.local_sgd_interval = interval;
      QuietTrainer trainer(
          model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
          {.callbacks = {ema}, .default_callbacks = {}, .accelerator = together(distributed)});
      trainer.train(run);
      if (saves) trainer.save_training_state(folder / "state");
      return tensors_of(ema->averaged_model_state());
    };
    const auto whole = train(options(4), false);
    train(options(2), true);
    TrainOptions rest = options(4);
    rest.resume_from = folder / "state";
    EXPECT_TRUE(bit_equal(train(rest, false), whole));
  }
}

}  // namespace
}  // namespace linkboy::testing::averages_test
