#include "linkboy/callbacks/precise_batch_norm.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/freeze_layers.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/fine_tuning/model_freezer.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::precise_batch_norm_test {
namespace {

class PreciseBatchNormTest : public ::testing::Test {
 protected:
  torch::nn::BatchNorm1d norm_{torch::nn::BatchNorm1dOptions(4)};
  torch::nn::Sequential model_{norm_, torch::nn::Linear(4, 3)};

  void train(PreciseBatchNormOptions options, int64_t num_epochs) {
    QuietTrainer trainer(model_, torch::nn::CrossEntropyLoss(), toy_sgd(model_),
                         {.callbacks = {std::make_shared<PreciseBatchNorm>(options)},
                          .accelerator = {.device = "cpu"}});
    trainer.train({.train_dataset = toy_data(16),
                   .num_epochs = num_epochs,
                   .per_device_batch_size = 4,
                   .train_dataloader_options = {.shuffle = false}});
  }

  /// Returns the mean of the variances of the first `num_batches` batches.
  static at::Tensor mean_of_variances(int64_t num_batches) {
    std::vector<int64_t> indices(static_cast<std::size_t>(4 * num_batches));
    for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int64_t>(i);
    auto data = toy_data(16);
    const at::Tensor batches = data.get_batch(indices).input().reshape({num_batches, 4, 4});
    return batches.var(1, /*unbiased=*/true).mean(0);
  }
};

TEST_F(PreciseBatchNormTest, StatisticsAreTheMeanOverTheBatches) {
  train({}, 1);
  // The layer is the first one, so its input does not depend on weights.
  EXPECT_TRUE(torch::allclose(norm_->running_var, mean_of_variances(4), 1e-5, 1e-6));
}

TEST_F(PreciseBatchNormTest, UsesTheRequestedNumberOfBatches) {
  train({.num_batches = 2}, 1);
  EXPECT_TRUE(torch::allclose(norm_->running_var, mean_of_variances(2), 1e-5, 1e-6));
}

TEST_F(PreciseBatchNormTest, DoesNotChangeOtherEpochsAndTheMomentum) {
  train({.every_n_epochs = 2}, 1);
  EXPECT_FALSE(torch::allclose(norm_->running_var, mean_of_variances(4), 1e-5, 1e-6));
  train({}, 1);
  EXPECT_EQ(norm_->options.momentum(), std::optional<double>(0.1));
}

TEST_F(PreciseBatchNormTest, RecomputesLayersOfTwoAndThreeDimensions) {
  namespace nn = torch::nn;
  const nn::BatchNorm2d of_two(4);
  const nn::BatchNorm3d of_three(4);
  model_ = nn::Sequential(nn::Unflatten(nn::UnflattenOptions(1, {4, 1, 1})), of_two, nn::Flatten(),
                          nn::Linear(4, 3));
  train({}, 1);
  EXPECT_TRUE(torch::allclose(of_two->running_var, mean_of_variances(4), 1e-5, 1e-6));
  model_ = nn::Sequential(nn::Unflatten(nn::UnflattenOptions(1, {4, 1, 1, 1})), of_three,
                          nn::Flatten(), nn::Linear(4, 3));
  train({}, 1);
  EXPECT_TRUE(torch::allclose(of_three->running_var, mean_of_variances(4), 1e-5, 1e-6));
}

TEST_F(PreciseBatchNormTest, UpdateKeepsTheModeOfTheModel) {
  std::vector<bool> modes;
  const auto update = [&](Trainer& trainer) {
    update_batch_norm(trainer);
    modes.push_back(trainer.model().is_training());
  };
  QuietTrainer trainer(model_, torch::nn::CrossEntropyLoss(), toy_sgd(model_),
                       {.callbacks = {make<LambdaCallback>(
                            {.on_train_epoch_end = update, .on_eval_epoch_start = update})},
                        .accelerator = {.device = "cpu"}});
  trainer.train({.train_dataset = toy_data(8), .num_epochs = 1, .eval_dataset = toy_data(8)});
  EXPECT_EQ(modes, (std::vector<bool>{true, false}));
}

TEST_F(PreciseBatchNormTest, KeepsTheStatisticsOfFrozenLayersAndAllModes) {
  norm_->running_mean.fill_(7);
  torch::nn::BatchNorm1d other(3);
  model_->push_back(other);
  const auto freezer =
      std::make_shared<ModelFreezer>(model_, ModelFreezerOptions{.freeze_batch_norms = true});
  freezer->freeze({.from_index = 0, .to_index = 0, .set_modules_as_eval = true});
  std::vector<std::vector<bool>> modes;
  const auto update = [&](Trainer& trainer) {
    update_batch_norm(trainer);
    modes.push_back({norm_->is_training(), other->is_training()});
  };
  const auto look = [&](Trainer&) {
    modes.push_back({norm_->is_training(), other->is_training()});
  };
  const at::Tensor mean_before = other->running_mean.clone();
  QuietTrainer trainer(model_, torch::nn::CrossEntropyLoss(),
                       std::make_shared<torch::optim::SGD>(freezer->get_trainable_parameters(),
                                                           torch::optim::SGDOptions(0.1)),
                       {.callbacks = {std::make_shared<FreezeLayers>(freezer),
                                      make<LambdaCallback>({.on_train_epoch_end = update,
                                                            .on_training_run_epoch_end = look})},
                        .accelerator = {.device = "cpu"}});
  trainer.train({.train_dataset = toy_data(8), .num_epochs = 1, .eval_dataset = toy_data(8)});
  // The modes are the same after the evaluation.
  EXPECT_EQ(modes, (std::vector<std::vector<bool>>{{false, true}, {false, true}}));
  EXPECT_TRUE(norm_->running_mean.eq(7).all().item<bool>());
  EXPECT_FALSE(torch::equal(other->running_mean, mean_before));
}

TEST_F(PreciseBatchNormTest, ALayerWithTwoNamesKeepsItsMomentum) {
  const torch::nn::Linear linear(4, 3);
  QuietTrainer trainer(
      torch::nn::Sequential(norm_, norm_, linear), torch::nn::CrossEntropyLoss(),
      std::make_shared<torch::optim::SGD>(linear->parameters(), torch::optim::SGDOptions(0.1)),
      {.callbacks = {std::make_shared<PreciseBatchNorm>()}, .accelerator = {.device = "cpu"}});
  trainer.train({.train_dataset = toy_data(8), .num_epochs = 2});
  EXPECT_EQ(norm_->options.momentum(), std::optional<double>(0.1));
}

TEST_F(PreciseBatchNormTest, RefusesOptionsOutOfRange) {
  EXPECT_ERROR(PreciseBatchNorm({.num_batches = 0}), "num_batches is 0");
  EXPECT_ERROR(PreciseBatchNorm({.every_n_epochs = 0}), "every_n_epochs is 0");
}

}  // namespace
}  // namespace linkboy::testing::precise_batch_norm_test
