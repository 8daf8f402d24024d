// The results of a Trainer: losses, gradients, schedules, modes, random numbers.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <numeric>

#include "linkboy/schedulers/curves.hpp"
#include "linkboy/trainer.hpp"
#include "support/in_every_event.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::trainer_numbers_test {
namespace {

/// Calls a function immediately before each step of the optimizer.
class BeforeStep : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  std::function<void()> before_step;

 protected:
  void optimizer_step() override {
    before_step();
    QuietTrainer::optimizer_step();
  }
};

TEST(TrainerNumbersTest, EpochLossIsTheSampleWeightedMean) {
  // Under accumulation, pytorch-accelerated divided it by the number of steps.
  for (const int64_t steps : {1, 2}) {
    const auto model = toy_model();
    const auto size = [](const torch::Tensor& output, const torch::Tensor& target) {
      return output.sum() * 0.0 + target.size(0);
    };
    QuietTrainer trainer(model, size, toy_sgd(model),
                         {.default_callbacks = {}, .accelerator = {.device = "cpu"}});
    trainer.train({.train_dataset = toy_data(10),
                   .per_device_batch_size = 4,
                   .num_epochs = 1,
                   .gradient_accumulation_steps = steps});
    EXPECT_DOUBLE_EQ(trainer.run_history().get_latest_metric("train_loss_epoch"),
                     (4.0 * 4 + 4.0 * 4 + 2.0 * 2) / 10);
  }
}

double norm_of_gradients(const torch::nn::Sequential& model) {
  double squares = 0.0;
  for (const auto& parameter : model->parameters()) {
    squares += parameter.grad().square().sum().item<double>();
  }
  return std::sqrt(squares);
}

TEST(TrainerNumbersTest, LimitsTheGradientNormAndReportsTheNormBefore) {
  ToyOf<BeforeStep> toy;
  double before = 0.0;
  int num_steps = 0;
  toy.on(Event::gradients_ready, [&](Trainer&) { before = norm_of_gradients(toy.model); });
  toy.trainer.before_step = [&] {
    EXPECT_NEAR(norm_of_gradients(toy.model), 0.01, 1e-5);
    ++num_steps;
  };
  toy.train(
      {.per_device_batch_size = 2, .gradient_accumulation_steps = 2, .gradient_clip_norm = 0.01});
  EXPECT_EQ(num_steps, 2);
  EXPECT_GT(before, 0.01);
  EXPECT_NEAR(toy.trainer.run().gradient_norm().item<double>(), before, 1e-6);
}

TEST(TrainerNumbersTest, TheAccumulatedGradientEqualsThatOfOneBigBatch) {
  // This includes a shorter last window, which pytorch-accelerated divided by the full length.
  const auto gradients_with = [](int64_t batch_size, int64_t accumulation) {
    std::vector<torch::Tensor> gradients;
    Toy toy;
    toy.on(Event::gradients_ready, [&](Trainer&) {
      gradients.clear();
      for (const auto& parameter : toy.model->parameters()) {
        gradients.push_back(parameter.grad().clone());
      }
    });
    toy.train({.train_dataset = toy_data(6),
               .per_device_batch_size = batch_size,
               .train_dataloader_options = {.shuffle = false},
               .gradient_accumulation_steps = accumulation});
    return gradients;
  };
  const auto big = gradients_with(6, 1);
  const auto whole_window = gradients_with(2, 3);
  ASSERT_EQ(big.size(), 4U);
  for (std::size_t i = 0; i < big.size(); ++i) {
    EXPECT_TRUE(torch::allclose(big[i], whole_window[i], 1e-5, 1e-7));
  }
  EXPECT_TRUE(bit_equal(whole_window, gradients_with(2, 4)));
}

TEST(TrainerNumbersTest, UpdateKUsesTheScheduleAtKMinusOne) {
  // pytorch-accelerated used f(0) for the first two updates.
  ToyOf<BeforeStep> toy({}, 0.5);
  std::vector<double> lrs;
  toy.trainer.before_step = [&] { lrs.push_back(rates_of(*toy.optimizer)[0]); };
  toy.train({.train_dataset = toy_data(7),
             .per_device_batch_size = 1,
             .gradient_accumulation_steps = 2,
             .create_scheduler_fn = cosine()});
  ASSERT_EQ(lrs.size(), 4U);
  for (int64_t k = 1; k <= 4; ++k)
    EXPECT_EQ(lrs[k - 1], toy.trainer.scheduler()->values_at(k - 1)[0]);
  EXPECT_EQ(lrs[0], 0.5);
  EXPECT_LT(lrs[1], 0.5);
  EXPECT_EQ(toy.trainer.scheduler()->num_updates(), 4);
}

TEST(TrainerNumbersTest, ASecondRunStartsItsScheduleAtTheSameBaseValueOrThatOfTheUser) {
  Toy toy({}, 0.5);
  const TrainOptions options{.per_device_batch_size = 1, .create_scheduler_fn = cosine()};
  toy.train(options);
  EXPECT_LT(rates_of(*toy.optimizer)[0], 1e-5);
  toy.train(options);
  EXPECT_EQ(toy.trainer.scheduler()->values_at(0)[0], 0.5);
  set_param_group_field(*toy.optimizer, ParamGroupField::lr, {0.25});
  toy.train(options);
  EXPECT_EQ(toy.trainer.scheduler()->values_at(0)[0], 0.25);
}

TEST(TrainerNumbersTest, TheNumberOfUpdatesReplacesTheNumberOfEpochs) {
  for (const int64_t steps : {1, 2}) {  // micro-steps are not counted
    Toy toy;
    const auto result = toy.train({.train_dataset = toy_data(10 * steps),
                                   .per_device_batch_size = 1,
                                   .num_epochs = 1,
                                   .max_num_updates = 25,
                                   .gradient_accumulation_steps = steps});
    EXPECT_EQ(result.num_updates, 25);
    EXPECT_EQ(result.num_epochs, 3);
    EXPECT_EQ(toy.trainer.run().config().num_epochs, 3);
  }
}

TEST(TrainerNumbersTest, TrainsInTrainingModeAndEvaluatesInEvaluationMode) {
  class Modes : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;
    StepOutput calculate_train_batch_loss(const Batch& batch) override {
      EXPECT_TRUE(model().is_training());
      EXPECT_TRUE(torch::GradMode::is_enabled());
      return QuietTrainer::calculate_train_batch_loss(batch);
    }
    StepOutput calculate_eval_batch_loss(const Batch& batch) override {
      EXPECT_FALSE(model().is_training());
      EXPECT_FALSE(torch::GradMode::is_enabled());
      return QuietTrainer::calculate_eval_batch_loss(batch);
    }
    void training_run_epoch_end() override { EXPECT_TRUE(model().is_training()); }
  };
  ToyOf<Modes> toy;
  toy.model->eval();
  toy.train({.eval_dataset = toy_data(8), .num_epochs = 2});
  toy.trainer.evaluate({.dataset = toy_data(8)});
}

TEST(TrainerNumbersTest, EvaluateReturnsItsMetricsWithAFreshHistory) {
  Toy toy;
  toy.train();
  const Metrics metrics = toy.trainer.evaluate({.dataset = toy_data(6)});
  ASSERT_EQ(metrics.size(), 1U);
  const auto data = toy_data(6).get_batch(std::vector<int64_t>{0, 1, 2, 3, 4, 5}).to(test_device());
  const auto loss =
      torch::nn::functional::cross_entropy(toy.model->forward(data.input()), data.target());
  EXPECT_NEAR(metrics.at("evaluation_loss"), loss.item<double>(), 1e-6);
  EXPECT_EQ(toy.trainer.run_history().get_metric_names(),
            std::vector<std::string>{"train_loss_epoch"})
      << "the history of the training run is kept, without the values of the evaluation";
}

TEST(TrainerNumbersTest, PredictReturnsAllOutputsInOrderAndKeepsTheMode) {
  Toy toy;
  toy.model->train();
  const auto outputs =
      toy.trainer.predict({.dataset = toy_data(10), .per_device_batch_size = 3}).toTensor();
  EXPECT_TRUE(toy.model->is_training());
  EXPECT_FALSE(outputs.requires_grad());
  std::vector<int64_t> all(10);
  std::iota(all.begin(), all.end(), 0);
  const torch::NoGradGuard no_grad;
  const auto batch = toy_data(10).get_batch(all).to(test_device());
  EXPECT_TRUE(torch::allclose(outputs, toy.model->forward(batch.input()).cpu()));
}

TEST(TrainerNumbersTest, NeverReseedsTheUsersGenerator) {
  // pytorch-accelerated sets the seed 42 in every run.
  Toy toy;  // before the seed, because making layers draws numbers
  torch::manual_seed(7);
  const auto expected = torch::rand({4});
  torch::manual_seed(7);
  toy.train({.eval_dataset = toy_data(8), .num_epochs = 2});
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

TEST(TrainerNumbersTest, TheSeedOfTheUserDeterminesTheShuffle) {
  const auto losses_with_seed = [](uint64_t seed) {
    torch::manual_seed(seed);
    Toy toy;
    toy.train({.train_dataset = toy_data(32), .per_device_batch_size = 4});
    return toy.values("train_loss_epoch");
  };
  EXPECT_EQ(losses_with_seed(1), losses_with_seed(1));
  EXPECT_NE(losses_with_seed(1), losses_with_seed(2));
}

TEST(TrainerNumbersTest, SeveralPassesOfAWeightedMicroStepCountItsSamplesOnce) {
  class TwoPasses : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;

   protected:
    void train_step(const Batch& batch) override {
      backward(forward(batch));
      backward(forward(Batch(batch.input() * 0.5, batch.target())));
      if (is_update_due()) update();
    }
  };
  for (const int64_t steps : {1, 2, 4}) {
    ToyOf<TwoPasses> plain, weighted;  // all batches have the same size
    TrainOptions options{
        .per_device_batch_size = 2, .num_epochs = 2, .gradient_accumulation_steps = steps};
    plain.train(options);
    options.weight_by_batch_size = true;
    weighted.train(options);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(torch::allclose(weighted.model->parameters()[i], plain.model->parameters()[i],
                                  1e-5, 1e-6))
          << steps;
    }
  }
}

}  // namespace
}  // namespace linkboy::testing::trainer_numbers_test
