#include "linkboy/callbacks/stochastic_weight_averaging.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "linkboy/trainer.hpp"
#include "support/at_update.hpp"
#include "support/averages.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/keep_losses.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::stochastic_weight_averaging_test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;
using SwaOptions = StochasticWeightAveragingOptions;

/// Keeps the weights after each update, and the learning rate of the update.
class KeepUpdates : public Callback {
 public:
  void on_gradients_ready(Trainer& trainer) override {
    lrs.push_back(get_param_group_field(*trainer.optimizer(), ParamGroupField::lr)[0]);
  }
  void on_train_update_end(Trainer& trainer) override {
    weights.push_back(copies_of(trainer.model().parameters()));
  }
  std::vector<double> lrs;
  std::vector<std::vector<Tensor>> weights;
};

/// Returns the mean of the weights after these updates, counted from 1.
std::vector<Tensor> mean_after(const KeepUpdates& keep, const std::vector<std::size_t>& updates) {
  std::vector<Tensor> mean;
  for (std::size_t i = 0; i < keep.weights[0].size(); ++i) {
    std::vector<Tensor> all;
    for (std::size_t update : updates) {
      all.push_back(keep.weights[update - 1][i].to(torch::kDouble));
    }
    mean.push_back(torch::stack(all).mean(0));
  }
  return mean;
}

std::shared_ptr<StochasticWeightAveraging> swa(SwaOptions options) {
  return std::make_shared<StochasticWeightAveraging>(std::move(options));
}

TEST(StochasticWeightAveragingTest, TheModelEndsWithTheMeanOfTheEpochs) {
  auto keep = std::make_shared<KeepUpdates>();
  auto average = swa({.start_after = placeholders::num_updates_per_epoch * 2});
  Toy toy({keep, average});
  toy.trainer.train(three_updates_per_epoch(5));
  EXPECT_EQ(average->num_averaged(), 3);
  expect_close(toy.model->parameters(), mean_after(*keep, {9, 12, 15}));
}

TEST(StochasticWeightAveragingTest, StartsAfterThreeQuartersOfTheRunByDefault) {
  auto keep = std::make_shared<KeepUpdates>();
  Toy toy({keep, swa({})});
  toy.trainer.train(three_updates_per_epoch(8));
  expect_close(toy.model->parameters(), mean_after(*keep, {21, 24}));
}

TEST(StochasticWeightAveragingTest, AveragesEveryNthUpdateOnRequest) {
  auto keep = std::make_shared<KeepUpdates>();
  auto average = swa({.start_after = 3, .every_n_updates = 2});
  Toy toy({keep, average});
  toy.trainer.train(three_updates_per_epoch(3));
  expect_close(toy.model->parameters(), mean_after(*keep, {5, 7, 9}));
}

TEST(StochasticWeightAveragingTest, EvaluatesTheAverage) {
  Toy toy({swa({})});
  toy.trainer.train(three_updates_per_epoch(4));
  const double loss = toy.trainer.run_history().get_latest_metric("swa_model_eval_loss_epoch");
  const auto metrics = toy.trainer.evaluate({.dataset = toy_data(6), .per_device_batch_size = 4});
  EXPECT_EQ(metrics.at("evaluation_loss"), loss);
  Toy silent({swa({.evaluate = false})});
  silent.trainer.train(three_updates_per_epoch(4));
  EXPECT_TRUE(silent.trainer.run_history().get_metric_values("swa_model_eval_loss_epoch").empty());
}

TEST(StochasticWeightAveragingTest, SetsAConstantLearningRateWithAndWithoutAScheduler) {
  for (const bool has_scheduler : {false, true}) {
    SCOPED_TRACE(has_scheduler);
    auto keep = std::make_shared<KeepUpdates>();
    Toy toy({keep, swa({.start_after = 4, .swa_lr = 0.03})});
    TrainOptions options = three_updates_per_epoch(2);
    if (has_scheduler) options.create_scheduler_fn = cosine();
    toy.trainer.train(options);
    ASSERT_EQ(keep->lrs.size(), 6U);
    EXPECT_EQ(keep->lrs[0], 0.1);
    EXPECT_NE(keep->lrs[3], 0.03);
    EXPECT_EQ(keep->lrs[4], 0.03);
    EXPECT_EQ(keep->lrs[5], 0.03);
    // The next run starts like this one.
    toy.trainer.train(options);
    EXPECT_EQ(keep->lrs[6], 0.1);
  }
}

TEST(StochasticWeightAveragingTest, AnnealsTheLearningRate) {
  auto cosine = std::make_shared<KeepUpdates>();
  Toy first({cosine, swa({.start_after = 2, .swa_lr = 0.5, .num_annealing_updates = 4})});
  first.trainer.train(three_updates_per_epoch(3));
  const std::vector<double> shares{0, 0, 0, 0.5 - std::sqrt(0.125), 0.5, 0.5 + std::sqrt(0.125),
                                   1, 1, 1};
  for (std::size_t k = 0; k < 9; ++k) {
    EXPECT_NEAR(cosine->lrs[k], 0.1 + 0.4 * shares[k], 1e-12) << k;
  }
  auto linear = std::make_shared<KeepUpdates>();
  Toy second({linear, swa({.start_after = 2,
                           .swa_lr = 0.5,
                           .num_annealing_updates = 4,
                           .annealing = SwaOptions::Annealing::linear})});
  second.trainer.train(three_updates_per_epoch(3));
  const std::vector<double> lrs{0.1, 0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5};
  for (std::size_t k = 0; k < 9; ++k) EXPECT_NEAR(linear->lrs[k], lrs[k], 1e-12) << k;
}

TEST(StochasticWeightAveragingTest, RestoresTheLearningRateAfterAnExceptionToo) {
  class Fail : public Callback {
   public:
    void on_train_update_end(Trainer& trainer) override {
      if (trainer.num_updates() == 5) throw Error("no more");
    }
  };
  Toy toy({std::make_shared<Fail>(), swa({.start_after = 1, .swa_lr = 0.5})});
  EXPECT_ERROR(toy.trainer.train(three_updates_per_epoch(2)), "no more");
  EXPECT_EQ(toy.optimizer->param_groups()[0].options().get_lr(), 0.1);
}

TEST(StochasticWeightAveragingTest, AnExceptionInAnUpdateRestoresTheRateOfTheSchedule) {
  class FailingStep : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;
    void optimizer_step() override { throw Error("no more"); }
  };
  auto model = toy_model();
  FailingStep trainer(
      model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
      {.callbacks = {swa({.start_after = 0, .swa_lr = 0.03})}, .accelerator = {.device = "cpu"}});
  TrainOptions options = three_updates_per_epoch(2);
  options.create_scheduler_fn = cosine();
  EXPECT_ERROR(trainer.train(options), "no more");
  EXPECT_EQ(trainer.optimizer()->param_groups()[0].options().get_lr(), 0.1);
}

TEST(StochasticWeightAveragingTest, ALaterRunRestoresItsInitialLearningRate) {
  Toy toy({swa({.start_after = 4, .swa_lr = 0.03})});
  toy.trainer.train(three_updates_per_epoch(2));
  set_param_group_field(*toy.optimizer, ParamGroupField::lr, {0.2});
  toy.trainer.train(three_updates_per_epoch(2));
  EXPECT_EQ(toy.optimizer->param_groups()[0].options().get_lr(), 0.2);
}

TEST(StochasticWeightAveragingTest, TheInitialCheckChangesNothing) {
  const auto run = [](bool update_batch_norm) {
    torch::manual_seed(5);
    nn::Sequential model(nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Dropout(0.5), nn::Linear(4, 3));
    const auto keep = std::make_shared<KeepUpdates>();
    QuietTrainer trainer(
        model, nn::CrossEntropyLoss(), toy_sgd(model),
        {.callbacks = {keep, swa({.start_after = 0, .update_batch_norm = update_batch_norm})},
         .accelerator = {.device = "cpu"}});
    trainer.train({.train_dataset = toy_data(8), .num_epochs = 2});
    return keep->weights.back();
  };
  EXPECT_TRUE(bit_equal(run(true), run(false)));
}

TEST(StochasticWeightAveragingTest, AnExceptionAtTheEndRestoresTheWeightsOfTheModel) {
  class Fail : public Callback {
   public:
    void on_eval_epoch_start(Trainer& trainer) override {
      if (trainer.is_intermediate_evaluation()) throw Error("no evaluation");
    }
  };
  const auto keep = std::make_shared<KeepUpdates>();
  Toy toy({keep, swa({.start_after = 0}), std::make_shared<Fail>()});
  EXPECT_ERROR(toy.trainer.train(
                   {.train_dataset = toy_data(8), .num_epochs = 3, .eval_dataset = toy_data(4)}),
               "no evaluation");
  EXPECT_TRUE(bit_equal(toy.model->parameters(), keep->weights.back()));
}

TEST(StochasticWeightAveragingTest, KeepsTheWeightsOfARunThatWillResume) {
  class StopAtEight : public Callback {
   public:
    explicit StopAtEight(StopReason reason) : reason_(reason) {}
    void on_train_update_end(Trainer& trainer) override {
      if (trainer.num_updates() == 8) trainer.request_stop(reason_);
    }

   private:
    StopReason reason_;
  };
  for (const auto reason : {StopReason::stop_request, StopReason::nan, StopReason::early_stop}) {
    SCOPED_TRACE(to_string(reason));
    auto keep = std::make_shared<KeepUpdates>();
    Toy toy({keep, swa({.start_after = 2}), std::make_shared<StopAtEight>(reason)});
    toy.trainer.train(three_updates_per_epoch(4));
    const bool goes_on = reason != StopReason::early_stop;
    EXPECT_EQ(bit_equal(toy.model->parameters(), keep->weights.back()), goes_on);
    if (!goes_on) expect_close(toy.model->parameters(), mean_after(*keep, {3, 6}));
    EXPECT_TRUE(toy.trainer.run_history().get_metric_values("swa_model_eval_loss_epoch").empty());
  }
}

TEST(StochasticWeightAveragingTest, RejectsOptionsThatDoNotFit) {
  EXPECT_ERROR((StochasticWeightAveraging{{.every_n_updates = 0}}), "every_n_updates is 0");
  EXPECT_ERROR((StochasticWeightAveraging{{.swa_lr = -1.0}}), "swa_lr is -1");
  Toy late({swa({.start_after = 6})});
  EXPECT_ERROR(late.trainer.train(three_updates_per_epoch(2)),
               "start_after is 6, but the run has 6 updates");
  Toy early({swa({.start_after = -1})});
  EXPECT_ERROR(early.trainer.train(three_updates_per_epoch(2)), "start_after is -1");
  Toy negative({swa({.num_annealing_updates = -2})});
  EXPECT_ERROR(negative.trainer.train(three_updates_per_epoch(2)), "num_annealing_updates is -2");
  EXPECT_ERROR(StochasticWeightAveraging().averaged_model_state(),
               "no weights have been averaged yet");
}

struct Rehearsal {
  Rehearsal(int64_t last_update, bool has_scheduler) {
    torch::manual_seed(3);
    model = nn::Sequential(nn::Linear(4, 8), nn::BatchNorm1d(8), nn::Linear(8, 3));
    const SwaOptions swa_options{
        .start_after = placeholders::num_updates / 3, .swa_lr = 0.02, .num_annealing_updates = 3};
    trainer = std::make_unique<QuietTrainer>(
        model, nn::CrossEntropyLoss(), toy_sgd(model),
        TrainerOptions{.callbacks = {swa(swa_options), losses, stop_at(last_update)},
                       .accelerator = {.device = "cpu"}});
    options = three_updates_per_epoch(4);
    if (has_scheduler) options.create_scheduler_fn = cosine();
  }

  torch::nn::Sequential model;
  std::shared_ptr<KeepLosses> losses = std::make_shared<KeepLosses>();
  std::unique_ptr<QuietTrainer> trainer;
  TrainOptions options;
};

TEST(StochasticWeightAveragingTest, AResumedRunIsBitIdenticalToTheUninterruptedOne) {
  const TemporaryFolder folder;
  for (const bool has_scheduler : {false, true}) {
    Rehearsal whole(100, has_scheduler);
    whole.trainer->train(whole.options);
    whole.trainer->save_training_state(folder / "whole");
    const std::string expected = read_bytes(folder / "whole" / kTrainingStateFile);
    // Before, at and after the start of the averaging, and at an epoch's end.
    for (int64_t k : {2, 4, 5, 9}) {
      SCOPED_TRACE(k);
      Rehearsal first(k, has_scheduler);
      // Saves the state of the update, before the end of the run restores the learning rates.
      first.trainer->callback_handler().add(
          make<SaveTrainingState>({.directory = folder / "states"}));
      first.trainer->train(first.options);
      Rehearsal second(100, has_scheduler);
      second.options.resume_from = folder / "states";
      EXPECT_EQ(second.trainer->train(second.options).num_updates, 12);
      second.trainer->save_training_state(folder / "resumed");
      EXPECT_EQ(read_bytes(folder / "resumed" / kTrainingStateFile), expected);
    }
  }
}

// A run that ends after a number of updates adds its last weights to the average, but its saved
// state does not contain them.
TEST(StochasticWeightAveragingTest, ALongerRunForgetsTheEndOfTheShorterOne) {
  const TemporaryFolder folder;
  const auto train = [&](int64_t num_updates, bool is_resumed) {
    auto average = swa({.start_after = 3});
    Toy toy({average, make<SaveTrainingState>({.directory = folder / "states"})});
    TrainOptions options = three_updates_per_epoch(4);
    options.max_num_updates = num_updates;
    if (is_resumed) options.resume_from = folder / "states";
    toy.trainer.train(options);
    return std::pair(average->num_averaged(), copies_of(toy.model->parameters()));
  };
  const auto whole = train(12, false);
  EXPECT_EQ(whole.first, 3);            // after 6, 9 and 12
  EXPECT_EQ(train(8, false).first, 2);  // after 6 and 8
  const auto longer = train(12, true);
  EXPECT_EQ(longer.first, 3);
  EXPECT_TRUE(bit_equal(longer.second, whole.second));
  const auto ended = train(12, true);  // no updates are left
  EXPECT_EQ(ended.first, 3);
  EXPECT_TRUE(bit_equal(ended.second, whole.second));
}

}  // namespace
}  // namespace linkboy::testing::stochastic_weight_averaging_test
