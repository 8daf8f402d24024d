// Averages of weights, and limited evaluations, on several ranks.

#include "support/averages.hpp"
#include "distributed/ranks.hpp"
#include "linkboy/callbacks/limit_batches.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/step_based_evaluation.hpp"
#include "linkboy/callbacks/stochastic_weight_averaging.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::averages_test {
namespace {

TrainOptions options_for(int64_t num_ranks) {
  return {.train_dataset = toy_data(4 * num_ranks * 3),
          .num_epochs = 4,
          .eval_dataset = toy_data(4 * num_ranks + 1),
          .per_device_batch_size = 4};
}

TEST(AveragesTest, TheMovingAverageIsTheSameOnAllRanksAndRank0WritesIt) {
  const TemporaryFolder folder;
  auto ema = make<ModelEma>({.path = folder / "ema.pt"});
  RankToy toy(together(), {ema});
  auto& accelerator = toy.trainer.accelerator();
  toy.trainer.train(options_for(accelerator.num_processes()));
  EXPECT_EQ(ema->num_averaged(), 12);
  EXPECT_TRUE(same_on_all_ranks(accelerator, tensors_of(ema->averaged_model_state())));
  const auto losses = toy.trainer.run_history().get_metric_values("ema_model_eval_loss_epoch");
  EXPECT_EQ(losses.size(), 4U);
  EXPECT_TRUE(same_on_all_ranks(accelerator, {torch::tensor(losses)}));
  EXPECT_EQ(folder.names().size(), accelerator.is_main_process() ? 1U : 0U);
}

TEST(AveragesTest, AStopRequestDuringTheEvaluationOfTheAverageStopsAllRanks) {
  class StopOnLastRank : public Callback {
   public:
    void on_eval_epoch_start(Trainer& trainer) override {
      const auto& accelerator = trainer.accelerator();
      if (trainer.is_intermediate_evaluation() &&
          accelerator.process_index() + 1 == accelerator.num_processes()) {
        trainer.request_stop();
      }
    }
  };
  auto ema = std::make_shared<ModelEma>();
  RankToy toy(together(), {ema, std::make_shared<StopOnLastRank>()});
  auto& accelerator = toy.trainer.accelerator();
  EXPECT_EQ(toy.trainer.train(options_for(accelerator.num_processes())).reason,
            StopReason::stop_request);
  EXPECT_TRUE(same_on_all_ranks(accelerator, toy.parameters()));
  EXPECT_FALSE(bit_equal(toy.parameters(), tensors_of(ema->averaged_model_state())));
}

TEST(AveragesTest, StochasticAveragesUseTheStatisticsOfAllRanks) {
  namespace nn = torch::nn;
  torch::manual_seed(2);
  const nn::BatchNorm1d norm(4);
  nn::Sequential model(norm, nn::Linear(4, 3));
  QuietTrainer trainer(
      model, nn::CrossEntropyLoss(), toy_sgd(model),
      {.callbacks = {std::make_shared<StochasticWeightAveraging>()}, .accelerator = together()});
  auto& accelerator = trainer.accelerator();
  const auto options = options_for(accelerator.num_processes());
  trainer.train(options);
  EXPECT_TRUE(same_on_all_ranks(accelerator, model->parameters()));
  EXPECT_TRUE(same_on_all_ranks(accelerator, {norm->running_mean, norm->running_var}));
  // All batches have the same size, so the mean of their means is the mean over all samples.
  std::vector<int64_t> all;
  for (int64_t i = 0; i < options.train_dataset.size(); ++i) all.push_back(i);
  const auto inputs = options.train_dataset.get_batch(all).to(accelerator.device()).input();
  EXPECT_TRUE(torch::allclose(norm->running_mean, inputs.mean(0), 1e-4, 1e-5));
  EXPECT_EQ(trainer.run_history().get_metric_values("swa_model_eval_loss_epoch").size(), 1U);
}

TEST(AveragesTest, LimitedEvaluationsCountTheBatchesOfAllRanks) {
  class Count : public Callback {
   public:
    void on_eval_step_start(Trainer& trainer) override {
      if (trainer.is_intermediate_evaluation()) ++num_batches;
    }
    int64_t num_batches = 0;
  };
  for (const int64_t limit : {int64_t{1}, int64_t{3}}) {
    SCOPED_TRACE(limit);
    auto count = std::make_shared<Count>();
    RankToy toy(together(), {count,
                             make<LimitBatches>({.num_intermediate_eval_batches = limit,
                                                 .are_eval_limits_total = true}),
                             make<StepBasedEvaluation>({.every_n_updates = 12})});
    auto& accelerator = toy.trainer.accelerator();
    auto options = options_for(accelerator.num_processes());
    options.eval_dataset = toy_data(64);
    toy.trainer.train(options);
    const auto sum =
        accelerator.reduce(torch::tensor({count->num_batches}), ReduceOp::sum).item<int64_t>();
    EXPECT_EQ(sum, limit);
  }
}

}  // namespace
}  // namespace linkboy::testing::averages_test
