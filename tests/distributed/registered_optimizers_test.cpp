// Registered optimizers, and optimizers with a closure, on several ranks.

#include "distributed/ranks.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/model_and_critic.hpp"

namespace linkboy::testing::registered_optimizers_test {
namespace {

TrainOptions options_of_players(int64_t batch_size) {
  TrainOptions options = updates_of_players(8);
  options.train_dataset = toy_data(16 * num_ranks());
  options.per_device_batch_size = batch_size;
  return options;
}

/// Trains on all ranks with batches of 4, and in one process with batches of 4 samples per rank.
void expect_players_as_one_process(const DistributedOptions& distributed, bool critic_first,
                                   int64_t accumulation_steps = 1) {
  const auto train = [&](AcceleratorOptions accelerator, int64_t batch_size) {
    auto players = std::make_unique<Players>(critic_schedule(), CallbackList{}, accelerator);
    players->trainer->updates_critic_first = critic_first;
    TrainOptions options = options_of_players(batch_size);
    options.gradient_accumulation_steps = accumulation_steps;
    options.gradient_clip_norm = 0.05;
    players->trainer->train(options);
    return players;
  };
  const auto shared = train(together(distributed), 4);
  const auto single = train(alone(), 4 * num_ranks());
  expect_close(shared->tensors(), single->tensors(), 1e-4, 1e-6);
  EXPECT_TRUE(same_on_all_ranks(shared->trainer->accelerator(), shared->tensors()));
  EXPECT_EQ(shared->trainer->scheduler("critic")->num_updates(), 8);
}

TEST(RegisteredOptimizersTest, OneBackwardPassAveragesTheGradientsOfAll) {
  for (const DistributedOptions& distributed :
       {DistributedOptions{}, DistributedOptions{.zero_stage = 1},
        DistributedOptions{.zero_stage = 2}, DistributedOptions{.find_unused_parameters = true}}) {
    expect_players_as_one_process(distributed, /*critic_first=*/false);
  }
  expect_players_as_one_process({}, /*critic_first=*/false, /*accumulation_steps=*/2);
}

TEST(RegisteredOptimizersTest, EachBackwardPassAveragesTheGradientsOfItsLoss) {
  expect_players_as_one_process({}, /*critic_first=*/true);
  expect_players_as_one_process({.zero_stage = 1}, /*critic_first=*/true);
  expect_players_as_one_process({.gradient_as_bucket_view = false}, /*critic_first=*/true);
}

/// Has a separate optimizer for a layer of the model.
class OwnHead : public QuietTrainer {
 public:
  explicit OwnHead(AcceleratorOptions accelerator, torch::nn::Sequential model = toy_model())
      : QuietTrainer(model, torch::nn::CrossEntropyLoss(),
                     std::make_shared<torch::optim::SGD>(model[0]->parameters(), 0.1),
                     {.default_callbacks = {}, .accelerator = std::move(accelerator)}) {
    register_optimizer("head", std::make_shared<torch::optim::SGD>(model[2]->parameters(), 0.2));
  }

 protected:
  void optimizer_step() override {
    QuietTrainer::optimizer_step();
    step_optimizer("head");
  }
};

TEST(RegisteredOptimizersTest, APartOfTheModelCanHaveASeparateOptimizer) {
  OwnHead shared(together());
  OwnHead single(alone());
  for (int run = 0; run < 2; ++run) {  // the second run uses the existing groups
    shared.train(options_of_players(4));
    single.train(options_of_players(4 * num_ranks()));
    expect_close(shared.model().parameters(), single.model().parameters(), 1e-5);
    EXPECT_TRUE(same_on_all_ranks(shared.accelerator(), shared.model().parameters()));
  }
}

TEST(RegisteredOptimizersTest, AllRanksResumeThemBitIdentically) {
  const SharedFolder states;
  for (const int64_t zero_stage : {0, 1}) {
    const std::filesystem::path of_stage = states / std::to_string(zero_stage);
    const auto run = [&](const CallbackList& callbacks, bool is_resumed) {
      auto players = std::make_unique<Players>(critic_schedule(), callbacks,
                                               together({.zero_stage = zero_stage}));
      TrainOptions options = options_of_players(4);
      if (is_resumed) options.resume_from = of_stage;
      players->trainer->train(options);
      return players;
    };
    const auto whole = run({}, false);
    run({make<SaveTrainingState>({.directory = of_stage, .every_n_epochs = 1}), stop_at(5)}, false);
    Accelerator(together()).wait_for_everyone();
    const auto resumed = run({}, true);
    EXPECT_TRUE(bit_equal(resumed->tensors(), whole->tensors())) << zero_stage;
  }
}

TEST(RegisteredOptimizersTest, RanksThatRegisterOtherOptimizersAreAnError) {
  Players players(critic_schedule(), {}, together(), "critic of " + std::to_string(this_rank()));
  EXPECT_ERROR(players.trainer->train(options_of_players(4)), "registered optimizer critic of");
}

TEST(ClosureTest, AllRanksMakeTheSameLbfgsSteps) {
  const auto train = [](AcceleratorOptions accelerator, int64_t batch_size, int64_t steps) {
    // In double precision, because a line search amplifies the differences from the order of sums.
    auto model = toy_model();
    model->to(torch::kDouble);
    const auto lbfgs = torch::optim::LBFGSOptions(0.5).max_iter(4).line_search_fn("strong_wolfe");
    QuietTrainer trainer(model, torch::nn::CrossEntropyLoss(),
                         std::make_shared<torch::optim::LBFGS>(model->parameters(), lbfgs),
                         {.default_callbacks = {}, .accelerator = std::move(accelerator)});
    TrainOptions options = options_of_players(batch_size);
    options.gradient_accumulation_steps = steps;
    options.max_num_updates = 4;
    const auto inputs = toy_inputs(16 * num_ranks()).to(torch::kDouble);
    options.train_dataset = TensorDataset(inputs, torch::arange(16 * num_ranks()) % 3);
    trainer.train(options);
    EXPECT_TRUE(same_on_all_ranks(trainer.accelerator(), model->parameters()));
    return model->parameters();
  };
  for (const int64_t steps : {1, 2}) {
    const auto shared = train(together(), 4, steps);
    const auto single = train(alone(), 4 * num_ranks(), steps);
    expect_close(shared, single, 1e-9, 1e-9);
  }
}

}  // namespace
}  // namespace linkboy::testing::registered_optimizers_test
