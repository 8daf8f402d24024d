// Weights that differ between the ranks until they are averaged.

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"

namespace linkboy::testing::local_sgd_test {
namespace {

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
}  // namespace linkboy::testing::local_sgd_test
