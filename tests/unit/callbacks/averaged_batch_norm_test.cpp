// StochasticWeightAveraging recomputes the batch-norm statistics.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/stochastic_weight_averaging.hpp"
#include "support/averages.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/matchers.hpp"

namespace linkboy::testing::averaged_batch_norm_test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;
using SwaOptions = StochasticWeightAveragingOptions;

TEST(StochasticWeightAveragingTest, RecomputesTheStatisticsOfBatchNorm) {
  torch::manual_seed(1);
  const nn::BatchNorm1d norm(8);
  const nn::Linear first(4, 8);
  nn::Sequential model(first, norm, nn::ReLU(), nn::Linear(8, 3));
  auto trainer = cpu_trainer(model, {make<StochasticWeightAveraging>({})});
  TrainOptions options = three_updates_per_epoch(4);
  options.train_dataloader_options.shuffle = false;
  trainer.train(options);

  // As in torch.optim.swa_utils.update_bn: the plain mean of the statistics of the batches.
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> means;
  std::vector<Tensor> variances;
  for (int64_t i = 0; i < 12; i += 4) {
    const auto batch = toy_data(12).get_batch(std::vector<int64_t>{i, i + 1, i + 2, i + 3});
    const auto hidden = nn::Linear(first)->forward(batch.input());
    means.push_back(hidden.mean(0));
    variances.push_back(hidden.var(0));
  }
  EXPECT_TRUE(torch::allclose(norm->running_mean, torch::stack(means).mean(0), 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(norm->running_var, torch::stack(variances).mean(0), 1e-5, 1e-6));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 3);
  EXPECT_EQ(norm->options.momentum(), 0.1);
  EXPECT_TRUE(model->is_training());
}

TEST(StochasticWeightAveragingTest, UsesTheForwardOfTheOptionsForTheStatistics) {
  const nn::BatchNorm1d norm(4);
  nn::Sequential model(norm, nn::Linear(4, 3));
  int num_batches = 0;
  const auto forward = [&](Trainer& trainer, const Batch& batch) {
    EXPECT_FALSE(torch::GradMode::is_enabled());
    trainer.model()(batch.input());
    if (++num_batches == 6) throw Error("no more");
  };
  auto trainer = cpu_trainer(model, {make<StochasticWeightAveraging>({.forward = forward})});
  trainer.train(three_updates_per_epoch(2));
  EXPECT_EQ(num_batches, 4);  // one of them before the first update
  EXPECT_ERROR(trainer.train(three_updates_per_epoch(2)), "no more");
  EXPECT_EQ(norm->options.momentum(), 0.1);
}

/// A model with two inputs and a batch norm.
struct TwoInputsImpl : nn::Module {
  TwoInputsImpl() {
    linear = register_module("linear", nn::Linear(4, 3));
    norm = register_module("norm", nn::BatchNorm1d(3));
  }
  Tensor forward(const Tensor& x, const Tensor& y) { return norm(linear(x) + y.mean()); }
  nn::Linear linear{nullptr};
  nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(TwoInputs);

/// Passes the input to the model twice.
class TwoInputsTrainer : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

 protected:
  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    const Tensor outputs = model().forward({batch.input(), batch.input()}).toTensor();
    return {.loss = torch::cross_entropy_loss(outputs, batch.target()),
            .model_outputs = outputs,
            .batch_size = batch.size()};
  }
};

TEST(StochasticWeightAveragingTest, AForwardThatDoesNotFitIsRefusedBeforeTheFirstUpdate) {
  const auto forward = [](Trainer& trainer, const Batch& batch) {
    trainer.model().forward({batch.input(), batch.input()});
  };
  const auto train = [](SwaOptions options) {
    auto trainer =
        cpu_trainer<TwoInputsTrainer>(TwoInputs(), {make<StochasticWeightAveraging>(options)});
    try {
      trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
    } catch (const Error& error) {
      EXPECT_EQ(trainer.num_updates(), 0);
      EXPECT_THAT(error.what(), Not(HasSubstr("frame #")));
      throw;
    }
  };
  EXPECT_ERROR(train({.start_after = 0}), "Set StochasticWeightAveragingOptions::forward");
  train({.start_after = 0, .forward = forward});
  train({.start_after = 0, .update_batch_norm = false});
}

// The forward function is not needed if no batch norm is updated.
TEST(StochasticWeightAveragingTest, FrozenBatchNormsNeedNoForwardPass) {
  TwoInputs model;
  const auto freeze =
      make<LambdaCallback>({.on_train_epoch_start = [&](Trainer&) { model->norm->eval(); }});
  auto trainer = cpu_trainer<TwoInputsTrainer>(
      model, {freeze, make<StochasticWeightAveraging>({.start_after = 0})});
  EXPECT_EQ(trainer.train({.train_dataset = toy_data(8), .num_epochs = 1}).num_epochs, 1);
}

}  // namespace
}  // namespace linkboy::testing::averaged_batch_norm_test
