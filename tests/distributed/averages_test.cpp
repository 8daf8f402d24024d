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
  RankToy toy(together(), {std::make_shared<StochasticWeightAveraging>()},
              nn::Sequential(norm, nn::Linear(4, 3)));
  const auto options = four_epochs();
  toy.trainer.train(options);
  EXPECT_TRUE(same_on_all_ranks(toy));
  EXPECT_TRUE(same_on_all_ranks(toy.accelerator(), {norm->running_mean, norm->running_var}));
  // All batches have the same size, so the mean of their means is the mean over all samples.
  const auto inputs = toy_inputs(options.train_dataset.size()).to(toy.accelerator().device());
  EXPECT_TRUE(torch::allclose(norm->running_mean, inputs.mean(0), 1e-4, 1e-5));
  EXPECT_EQ(toy.values("swa_model_eval_loss_epoch").size(), 1U);
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
      auto ema = make<ModelEma>({.decay = 0.7, .evaluate = false});
      RankToy toy(together({.local_sgd_interval = interval}), {ema},
                  torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8),
                                        torch::nn::Linear(8, 3)));
      toy.trainer.train(run);
      if (saves) toy.trainer.save_training_state(folder / "state");
      return tensors_of(ema->averaged_model_state());
    };
    const auto whole = train(options(4), false);
    train(options(2), true);
    TrainOptions rest = options(4);
    rest.resume_from = folder / "state";
    EXPECT_TRUE(bit_equal(train(rest, false), whole));
  }
}

// ---- Weights that differ between the ranks until they are averaged

struct LocalSgdTest : ::testing::Test {
  static AcceleratorOptions local_sgd() { return together({.local_sgd_interval = 3}); }
  static TrainOptions epochs(int64_t number) {
    TrainOptions options = run_of({.updates_per_epoch = 4, .num_epochs = number});
    options.train_dataloader_options.seed = 5;
    options.allow_changed_schedule_length = true;
    return options;
  }
};

TEST_F(LocalSgdTest, EvaluationsAfterARunChangeNeitherItsWeightsNorItsState) {
  const SharedFolder folder;
  RankToy whole(local_sgd());
  whole.trainer.train(epochs(2));

  RankToy toy(local_sgd());
  toy.trainer.train(epochs(1));
  const auto weights = copies_of(toy.parameters());
  EXPECT_FALSE(same_on_all_ranks(toy));
  toy.trainer.evaluate({.dataset = toy_data(8)});
  toy.trainer.predict({.dataset = toy_data(8)});
  EXPECT_TRUE(bit_equal(toy.parameters(), weights));
  toy.trainer.save_training_state(folder / "state");

  RankToy resumed(local_sgd());
  TrainOptions options = epochs(2);
  options.resume_from = folder / "state";
  resumed.trainer.train(options);
  EXPECT_TRUE(bit_equal(resumed.parameters(), whole.parameters()));
}

TEST_F(LocalSgdTest, AnEvaluationBeforeTheFirstRunUsesTheWeightsOfRank0) {
  RankToy toy(local_sgd());
  const torch::NoGradGuard no_grad;
  for (auto& weight : toy.model->parameters()) weight.add_(static_cast<double>(this_rank()));
  toy.trainer.evaluate({.dataset = toy_data(8)});
  EXPECT_TRUE(same_on_all_ranks(toy));
}

TEST_F(LocalSgdTest, ASecondRunBeginsWithTheWeightsOfRank0) {
  RankToy toy(local_sgd());
  toy.trainer.train(epochs(1));
  const auto of_rank_0 = toy.accelerator().broadcast(toy.parameters()[0]);
  torch::Tensor first;
  TrainOptions options = epochs(1);
  options.callbacks = {make<LambdaCallback>({.on_training_run_start = [&](Trainer& trainer) {
    first = trainer.model().parameters()[0].detach().clone();
  }})};
  toy.trainer.train(options);
  EXPECT_TRUE(torch::equal(first, of_rank_0));
}

}  // namespace
}  // namespace linkboy::testing::averages_test
