#include "linkboy/engine.hpp"

#include "distributed/ranks.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::engine_test {
namespace {

constexpr int64_t kNumUpdates = 3;

/// Data for `kNumUpdates` updates of two samples per rank.
std::shared_ptr<DataLoader> loader(int64_t batch_size = 2) {
  return make_data_loader(toy_data(2 * num_ranks() * kNumUpdates), {.batch_size = batch_size});
}

struct RankEngine {
  explicit RankEngine(AcceleratorOptions accelerator,
                      std::shared_ptr<DataLoader> train_dataloader = loader(),
                      int64_t accumulation_steps = 1)
      : parts(initialize(model, toy_sgd(model), torch::nn::CrossEntropyLoss(),
                         std::move(train_dataloader),
                         make_data_loader(toy_data(5), {.batch_size = 2}), cosine({}),
                         {.num_epochs = 1,
                          .gradient_accumulation_steps = accumulation_steps,
                          .accelerator = std::move(accelerator)})) {}

  void train() {
    parts.engine.train();
    for (const Batch& batch : parts.train_dataloader->batches(1)) {
      parts.engine.zero_grad();
      parts.engine.backward(parts.engine.loss_function(parts.engine(batch), batch.target()));
      parts.engine.step();
    }
  }

  torch::nn::Sequential model = toy_model();
  InitializedEngine parts;
  Engine& engine = parts.engine;
};

using EngineRanksTest = GroupTest;

TEST_F(EngineRanksTest, TrainsLikeOneProcessWithAllSamples) {
  RankEngine ranks(together());
  RankEngine one(alone(), loader(2 * num_ranks()));
  for (RankEngine* each : {&ranks, &one}) {
    each->train();
    EXPECT_EQ(each->engine.num_updates(), kNumUpdates);
    EXPECT_EQ(each->engine.run_config().max_num_updates, kNumUpdates);
  }
  EXPECT_TRUE(same_on_all_ranks(accelerator, ranks.model->parameters()));
  expect_close(ranks.model->parameters(), one.model->parameters(), 1e-5);
}

TEST_F(EngineRanksTest, EvaluatesEachSampleOnce) {
  RankEngine ranks(together());
  int64_t num_samples = 0;
  for (const Batch& batch : ranks.parts.eval_dataloader->batches(1)) num_samples += batch.size();
  EXPECT_EQ(accelerator.reduce(torch::tensor({num_samples})).item<int64_t>(), 5);
}

TEST_F(EngineRanksTest, AllRanksEvaluateWithTheStatisticsOfRank0) {
  torch::nn::Sequential model(torch::nn::BatchNorm1d(4));
  auto parts = initialize(model, std::make_shared<torch::optim::SGD>(model->parameters(), 0.1), {},
                          loader(), nullptr, {}, {.accelerator = together()});
  parts.engine.train();
  for (const Batch& batch : parts.train_dataloader->batches(1)) {
    parts.engine.backward(parts.engine(batch).square().sum());
    parts.engine.step();
  }
  parts.engine.eval();
  EXPECT_TRUE(same_on_all_ranks(accelerator, model->buffers()));
}

TEST_F(EngineRanksTest, AStateUnderLocalSgdContainsTheWeightsOfEachRank) {
  const auto local = together({.local_sgd_interval = 1000});
  RankEngine trained(local);
  trained.train();
  const StateDict state = trained.engine.state_dict();
  RankEngine resumed(local);
  resumed.engine.load_state_dict(state);
  EXPECT_TRUE(bit_equal(resumed.model->parameters(), trained.model->parameters()));
  EXPECT_EQ(same_on_all_ranks(accelerator, trained.model->parameters()), num_ranks() == 1);
}

TEST_F(EngineRanksTest, OptionsThatDifferBetweenRanksAreAnError) {
  const bool is_main = rank == 0;
  EXPECT_ERROR(RankEngine(together(), loader(), /*accumulation_steps=*/is_main ? 2 : 1),
               "gradient_accumulation_steps = ");
  EXPECT_ERROR(RankEngine(together(), loader(is_main ? 2 : 1)), "batches per epoch = ");
  const auto with_eval_on_rank_0 = [&] {
    const auto model = toy_model();
    initialize(model, toy_sgd(model), {}, loader(), is_main ? loader() : nullptr, {},
               {.accelerator = together()});
  };
  EXPECT_ERROR(with_eval_on_rank_0(), "an evaluation loader = ");
}

}  // namespace
}  // namespace linkboy::testing::engine_test
