// The results of a Trainer: losses, gradients, schedules, modes, random numbers.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <numeric>

#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "linkboy/trainer.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::trainer_numbers_test {
namespace {

using torch::nn::CrossEntropyLoss;

TEST(TrainerNumbersTest, TracksTheUnscaledLossUnderAccumulation) {
  // pytorch-accelerated reported a constant loss of 2 as 2 / accumulation steps.
  auto model = toy_model();
  QuietTrainer trainer(
      model,
      [](const torch::Tensor& output, const torch::Tensor&) { return output.sum() * 0.0 + 2.0; },
      toy_sgd(model), {.callbacks = {}, .accelerator = {.device = "cpu"}});
  trainer.train({.train_dataset = toy_data(8),
                 .num_epochs = 1,
                 .per_device_batch_size = 1,
                 .gradient_accumulation_steps = 4});
  EXPECT_EQ(trainer.run_history().get_latest_metric("train_loss_epoch"), 2.0);
}

TEST(TrainerNumbersTest, EpochLossIsTheSampleWeightedMean) {
  auto model = toy_model();
  QuietTrainer trainer(model,
                       [](const torch::Tensor& output, const torch::Tensor& target) {
                         return output.sum() * 0.0 + target.size(0);
                       },
                       toy_sgd(model), {.callbacks = {}, .accelerator = {.device = "cpu"}});
  trainer.train({.train_dataset = toy_data(10), .num_epochs = 1, .per_device_batch_size = 4});
  EXPECT_DOUBLE_EQ(trainer.run_history().get_latest_metric("train_loss_epoch"),
                   (4.0 * 4 + 4.0 * 4 + 2.0 * 2) / 10);
}

TEST(TrainerNumbersTest, ClipsOncePerUpdate) {
  // pytorch-accelerated clipped in every micro-step: 10 times for 3 updates.
  class Clipping : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;
    void clip_gradients() override { ++clips; }
    int clips = 0;
  };
  auto model = toy_model();
  Clipping trainer(model, CrossEntropyLoss(), toy_sgd(model),
                   {.callbacks = {}, .accelerator = {.device = "cpu"}});
  trainer.train({.train_dataset = toy_data(10),
                 .num_epochs = 1,
                 .per_device_batch_size = 1,
                 .gradient_accumulation_steps = 4,
                 .gradient_clip_value = 0.1});
  EXPECT_EQ(trainer.clips, 3);
  EXPECT_EQ(trainer.num_updates(), 3);
}

TEST(TrainerNumbersTest, LimitsTheGradientNormAndReportsTheNormBefore) {
  class Measuring : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;
    void optimizer_step() override {
      double squares = 0.0;
      for (const auto& parameter : model().parameters()) {
        squares += parameter.grad().square().sum().item<double>();
      }
      clipped_norms.push_back(std::sqrt(squares));
      QuietTrainer::optimizer_step();
    }
    std::vector<double> clipped_norms;
  };
  auto model = toy_model();
  Measuring trainer(model, CrossEntropyLoss(), toy_sgd(model),
                    {.callbacks = {}, .accelerator = {.device = "cpu"}});
  trainer.train({.train_dataset = toy_data(8),
                 .num_epochs = 1,
                 .per_device_batch_size = 4,
                 .gradient_clip_norm = 0.01});
  for (double norm : trainer.clipped_norms) EXPECT_NEAR(norm, 0.01, 1e-5);
  EXPECT_GT(trainer.gradient_norm().item<double>(), 0.01);
}

TEST(TrainerNumbersTest, TheAccumulatedGradientEqualsThatOfOneBigBatch) {
  // This includes a shorter last window, which pytorch-accelerated divided by the full length.
  class Grabbing : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;
    void optimizer_step() override {
      gradients.clear();
      for (const auto& parameter : model().parameters()) {
        gradients.push_back(parameter.grad().clone());
      }
    }
    std::vector<torch::Tensor> gradients;
  };
  auto gradients_with = [](int64_t batch_size, int64_t accumulation) {
    auto model = toy_model();
    Grabbing trainer(model, CrossEntropyLoss(), toy_sgd(model),
                     {.callbacks = {}, .accelerator = {.device = "cpu"}});
    TrainOptions options{.train_dataset = toy_data(6),
                         .num_epochs = 1,
                         .per_device_batch_size = batch_size,
                         .gradient_accumulation_steps = accumulation};
    options.train_dataloader_options.shuffle = false;
    trainer.train(options);
    return trainer.gradients;
  };
  const auto big = gradients_with(6, 1);
  const auto whole_window = gradients_with(2, 3);
  const auto partial_window = gradients_with(2, 4);
  for (std::size_t i = 0; i < big.size(); ++i) {
    EXPECT_TRUE(torch::allclose(big[i], whole_window[i], 1e-5, 1e-7));
    EXPECT_TRUE(torch::equal(whole_window[i], partial_window[i]));
  }
}

TEST(TrainerNumbersTest, StepsSchedulerOncePerOptimizerUpdate) {
  Toy toy;
  toy.trainer.train({.train_dataset = toy_data(10),
                     .num_epochs = 2,
                     .per_device_batch_size = 1,
                     .gradient_accumulation_steps = 4,
                     .create_scheduler_fn = cosine()});
  EXPECT_EQ(toy.trainer.scheduler()->num_updates(), 6);
  EXPECT_EQ(toy.trainer.num_updates(), 6);
}

TEST(TrainerNumbersTest, UpdateKUsesTheScheduleAtKMinusOne) {
  // pytorch-accelerated used f(0) for the first two updates.
  class RecordLr : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;
    void optimizer_step() override {
      lrs.push_back(get_param_group_field(*optimizer(), ParamGroupField::lr)[0]);
      QuietTrainer::optimizer_step();
    }
    std::vector<double> lrs;
  };
  auto model = toy_model();
  RecordLr trainer(model, CrossEntropyLoss(), toy_sgd(model, 0.5),
                   {.callbacks = {}, .accelerator = {.device = "cpu"}});
  trainer.train({.train_dataset = toy_data(4),
                 .num_epochs = 1,
                 .per_device_batch_size = 1,
                 .create_scheduler_fn = cosine()});
  ASSERT_EQ(trainer.lrs.size(), 4U);
  for (int64_t k = 1; k <= 4; ++k) {
    EXPECT_EQ(trainer.lrs[k - 1], trainer.scheduler()->values_at(k - 1)[0]);
  }
  EXPECT_EQ(trainer.lrs[0], 0.5);
  EXPECT_LT(trainer.lrs[1], 0.5);
}

TEST(TrainerNumbersTest, SecondRunStartsItsScheduleAtTheSameBaseValue) {
  Toy toy({}, 0.5);
  const TrainOptions options{.train_dataset = toy_data(4),
                             .num_epochs = 1,
                             .per_device_batch_size = 1,
                             .create_scheduler_fn = cosine()};
  toy.trainer.train(options);
  EXPECT_LT(get_param_group_field(*toy.optimizer, ParamGroupField::lr)[0], 1e-5);
  toy.trainer.train(options);
  EXPECT_EQ(toy.trainer.scheduler()->values_at(0)[0], 0.5);
}

TEST(TrainerNumbersTest, ASecondRunKeepsAValueThatTheUserHasSet) {
  Toy toy({}, 0.5);
  const TrainOptions options{.train_dataset = toy_data(4),
                             .num_epochs = 1,
                             .per_device_batch_size = 1,
                             .create_scheduler_fn = cosine()};
  toy.trainer.train(options);
  set_param_group_field(*toy.optimizer, ParamGroupField::lr, {0.25});
  toy.trainer.train(options);
  EXPECT_EQ(toy.trainer.scheduler()->values_at(0)[0], 0.25);
}

TEST(TrainerNumbersTest, TheNumberOfUpdatesReplacesTheNumberOfEpochs) {
  Toy toy;
  const auto result = toy.trainer.train({.train_dataset = toy_data(10),
                                         .num_epochs = 1,
                                         .per_device_batch_size = 1,
                                         .max_num_updates = 25});
  EXPECT_EQ(result.num_updates, 25);
  EXPECT_EQ(result.num_epochs, 3);
  EXPECT_EQ(toy.trainer.run_config().num_epochs, 3);
}

TEST(TrainerNumbersTest, TheNumberOfUpdatesCountsUpdatesNotMicroSteps) {
  Toy toy;
  const auto result = toy.trainer.train({.train_dataset = toy_data(40),
                                         .per_device_batch_size = 1,
                                         .max_num_updates = 15,
                                         .gradient_accumulation_steps = 2});
  EXPECT_EQ(result.num_updates, 15);
  EXPECT_EQ(result.num_epochs, 1);
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
  auto model = toy_model();
  Modes trainer(model, CrossEntropyLoss(), toy_sgd(model),
                {.callbacks = {}, .accelerator = {.device = "cpu"}});
  model->eval();
  trainer.train({.train_dataset = toy_data(8), .num_epochs = 2, .eval_dataset = toy_data(8)});
  trainer.evaluate({.dataset = toy_data(8)});
}

TEST(TrainerNumbersTest, EvaluateReturnsItsMetricsWithAFreshHistory) {
  Toy toy;
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  const Metrics metrics = toy.trainer.evaluate({.dataset = toy_data(6)});
  ASSERT_EQ(metrics.size(), 1U);
  const auto data = toy_data(6).get_batch(std::vector<int64_t>{0, 1, 2, 3, 4, 5}).to(test_device());
  const auto loss =
      torch::nn::functional::cross_entropy(toy.model->forward(data.input()), data.target());
  EXPECT_NEAR(metrics.at("evaluation_loss"), loss.item<double>(), 1e-6);
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
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 2, .eval_dataset = toy_data(8)});
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

TEST(TrainerNumbersTest, TheSeedOfTheUserDeterminesTheShuffle) {
  auto losses_with_seed = [](uint64_t seed) {
    torch::manual_seed(seed);
    Toy toy;
    toy.trainer.train({.train_dataset = toy_data(32), .num_epochs = 1, .per_device_batch_size = 4});
    return toy.trainer.run_history().get_latest_metric("train_loss_epoch");
  };
  EXPECT_EQ(losses_with_seed(1), losses_with_seed(1));
  EXPECT_NE(losses_with_seed(1), losses_with_seed(2));
}

}  // namespace
}  // namespace linkboy::testing::trainer_numbers_test
