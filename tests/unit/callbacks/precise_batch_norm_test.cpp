#include "linkboy/callbacks/precise_batch_norm.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <numeric>

#include "linkboy/callbacks/freeze_layers.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/fine_tuning/model_freezer.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"

namespace linkboy::testing::precise_batch_norm_test {
namespace {

class PreciseBatchNormTest : public ::testing::Test {
 protected:
  torch::nn::BatchNorm1d norm_{torch::nn::BatchNorm1dOptions(4)};
  torch::nn::Sequential model_{norm_, torch::nn::Linear(4, 3)};

  /// Trains one epoch.
  void train(PreciseBatchNormOptions options) {
    cpu_trainer(model_, {std::make_shared<PreciseBatchNorm>(options)})
        .train({.train_dataset = toy_data(16),
                .per_device_batch_size = 4,
                .train_dataloader_options = {.shuffle = false},
                .num_epochs = 1});
  }

  /// Returns whether these are the mean variances of the first `num_batches` batches.
  static bool is_mean_of_variances(const at::Tensor& variances, int64_t num_batches) {
    std::vector<int64_t> indices(static_cast<std::size_t>(4 * num_batches));
    std::iota(indices.begin(), indices.end(), int64_t{0});
    auto data = toy_data(16);
    const at::Tensor batches = data.get_batch(indices).input().reshape({num_batches, 4, 4});
    return torch::allclose(variances, batches.var(1, /*unbiased=*/true).mean(0), 1e-5, 1e-6);
  }
};

TEST_F(PreciseBatchNormTest, StatisticsAreTheMeanOverTheRequestedNumberOfBatches) {
  // The layer is the first one, so its input does not depend on weights.
  train({});
  EXPECT_TRUE(is_mean_of_variances(norm_->running_var, 4));
  train({.num_batches = 2});
  EXPECT_TRUE(is_mean_of_variances(norm_->running_var, 2));
}

TEST_F(PreciseBatchNormTest, DoesNotChangeOtherEpochsAndTheMomentum) {
  train({.every_n_epochs = 2});
  EXPECT_FALSE(is_mean_of_variances(norm_->running_var, 4));
  train({});
  EXPECT_EQ(norm_->options.momentum(), std::optional<double>(0.1));
}

TEST_F(PreciseBatchNormTest, RecomputesLayersOfTwoAndThreeDimensions) {
  namespace nn = torch::nn;
  const nn::BatchNorm2d of_two(4);
  const nn::BatchNorm3d of_three(4);
  model_ = nn::Sequential(nn::Unflatten(nn::UnflattenOptions(1, {4, 1, 1})), of_two, nn::Flatten(),
                          nn::Linear(4, 3));
  train({});
  EXPECT_TRUE(is_mean_of_variances(of_two->running_var, 4));
  model_ = nn::Sequential(nn::Unflatten(nn::UnflattenOptions(1, {4, 1, 1, 1})), of_three,
                          nn::Flatten(), nn::Linear(4, 3));
  train({});
  EXPECT_TRUE(is_mean_of_variances(of_three->running_var, 4));
}

TEST_F(PreciseBatchNormTest, UpdateKeepsTheModeOfTheModel) {
  std::vector<bool> modes;
  const auto update = [&](Trainer& trainer) {
    update_batch_norm(trainer);
    modes.push_back(trainer.model().is_training());
  };
  auto trainer = cpu_trainer(
      model_,
      {make<LambdaCallback>({.on_train_epoch_end = update, .on_eval_epoch_start = update})});
  trainer.train({.train_dataset = toy_data(8), .eval_dataset = toy_data(8), .num_epochs = 1});
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
  const auto look = [&](Trainer&) {
    modes.push_back({norm_->is_training(), other->is_training()});
  };
  const auto update_and_look = [&](Trainer& trainer) {
    update_batch_norm(trainer);
    look(trainer);
  };
  const at::Tensor mean_before = other->running_mean.clone();
  auto trainer =
      cpu_trainer(model_,
                  {std::make_shared<FreezeLayers>(freezer),
                   make<LambdaCallback>(
                       {.on_train_epoch_end = update_and_look, .on_training_run_epoch_end = look})},
                  std::make_shared<torch::optim::SGD>(freezer->get_trainable_parameters(), 0.1));
  trainer.train({.train_dataset = toy_data(8), .eval_dataset = toy_data(8), .num_epochs = 1});
  // The modes are the same after the evaluation.
  EXPECT_EQ(modes, (std::vector<std::vector<bool>>{{false, true}, {false, true}}));
  EXPECT_TRUE(norm_->running_mean.eq(7).all().item<bool>());
  EXPECT_FALSE(torch::equal(other->running_mean, mean_before));
}

TEST_F(PreciseBatchNormTest, ALayerWithTwoNamesKeepsItsMomentum) {
  const torch::nn::Linear linear(4, 3);
  auto trainer = cpu_trainer(torch::nn::Sequential(norm_, norm_, linear),
                             {std::make_shared<PreciseBatchNorm>()},
                             std::make_shared<torch::optim::SGD>(linear->parameters(), 0.1));
  trainer.train({.train_dataset = toy_data(8), .num_epochs = 2});
  EXPECT_EQ(norm_->options.momentum(), std::optional<double>(0.1));
}

TEST_F(PreciseBatchNormTest, RefusesOptionsOutOfRange) {
  EXPECT_ERROR(PreciseBatchNorm({.num_batches = 0}), "num_batches is 0");
  EXPECT_ERROR(PreciseBatchNorm({.every_n_epochs = 0}), "every_n_epochs is 0");
}

}  // namespace
}  // namespace linkboy::testing::precise_batch_norm_test
