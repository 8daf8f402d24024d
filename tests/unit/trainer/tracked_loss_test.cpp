// Losses that are tracked in addition to the main one.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/calls.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::tracked_loss_test {
namespace {

/// The toy with a second loss, the mean of the squared outputs.
class TwoLosses : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

  StepOutput calculate_train_batch_loss(const Batch& batch) override {
    return with_size_loss(Trainer::calculate_train_batch_loss(batch));
  }
  StepOutput calculate_eval_batch_loss(const Batch& batch) override {
    StepOutput output = Trainer::calculate_eval_batch_loss(batch);
    return evaluates_size ? with_size_loss(std::move(output)) : output;
  }

  bool evaluates_size = true;
  double weighted_sum = 0.0;

 private:
  StepOutput with_size_loss(StepOutput output) {
    const at::Tensor loss = output.model_outputs.toTensor().square().mean();
    weighted_sum += loss.item<double>() * static_cast<double>(output.batch_size);
    output.extras.set("size_loss", loss.detach());
    return output;
  }
};

TwoLosses two_losses(const torch::nn::Sequential& model, CallbackList callbacks = {}) {
  return TwoLosses(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                   {.callbacks = std::move(callbacks), .accelerator = {.device = "cpu"}});
}

TEST(TrackLossTest, RecordsTheExactMeanNextToTheMainLoss) {
  auto model = toy_model();
  auto trainer = two_losses(model);
  trainer.track_loss("size_loss");
  trainer.train({.train_dataset = toy_data(10), .num_epochs = 1, .per_device_batch_size = 4});
  EXPECT_NEAR(trainer.run_history().get_latest_metric("train_size_loss_epoch"),
              trainer.weighted_sum / 10.0, 1e-7);
}

TEST(TrackLossTest, IsRecordedInEvaluationsUnderTheNameOfTheirLoss) {
  auto model = toy_model();
  auto trainer = two_losses(model);
  trainer.track_loss("size_loss");
  trainer.train({.train_dataset = toy_data(8), .num_epochs = 1, .eval_dataset = toy_data(6)});
  EXPECT_EQ(trainer.run_history().get_metric_values("eval_size_loss_epoch").size(), 1U);
  EXPECT_EQ(trainer.evaluate({.dataset = toy_data(6)}).count("evaluation_size_loss"), 1U);
}

TEST(TrackLossTest, AnEvaluationWithoutItRecordsNothing) {
  auto model = toy_model();
  auto trainer = two_losses(model);
  trainer.evaluates_size = false;
  trainer.track_loss("size_loss");
  trainer.train({.train_dataset = toy_data(8), .num_epochs = 1, .eval_dataset = toy_data(6)});
  EXPECT_TRUE(trainer.run_history().get_metric_values("eval_size_loss_epoch").empty());
}

TEST(TrackLossTest, ATrainingStepWithoutItIsAnErrorThatNamesIt) {
  Toy toy;
  toy.trainer.track_loss("box_loss");
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1}), "box_loss");
}

TEST(TrackLossTest, RefusesNamesThatAreTaken) {
  Toy toy;
  toy.trainer.track_loss("box_loss");
  EXPECT_ERROR(toy.trainer.track_loss("box_loss"), "already tracked");
  EXPECT_ERROR(toy.trainer.track_loss("loss"), "\"loss\"");
  EXPECT_ERROR(toy.trainer.track_loss(""), "must not be empty");
}

TEST(TrackLossTest, RefusesToStartInTheMiddleOfARun) {
  auto calls = std::make_shared<Calls>();
  calls->at_update_end = [](Trainer& trainer) { trainer.track_loss("late"); };
  Toy toy({calls});
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1}),
               "cannot be added during a run");
}

TEST(TrackLossTest, AnEpochResumedInItsMiddleHasTheSameMean) {
  const SingleThread one_thread;
  TemporaryFolder folder;
  const TrainOptions options{
      .train_dataset = toy_data(20), .num_epochs = 1, .per_device_batch_size = 4};
  auto model = toy_model();
  auto calls = std::make_shared<Calls>();
  calls->at_update_end = [&](Trainer& trainer) {
    if (trainer.num_updates() == 2) trainer.save_training_state(folder.path() / "state");
  };
  auto whole = two_losses(model, {calls});
  whole.track_loss("size_loss");
  torch::manual_seed(1);
  whole.train(options);

  auto resumed_model = toy_model();
  auto resumed = two_losses(resumed_model, {std::make_shared<Calls>()});
  resumed.track_loss("size_loss");
  auto resuming = options;
  resuming.resume_from = folder.path() / "state";
  resumed.train(resuming);
  EXPECT_EQ(resumed.run_history().get_latest_metric("train_size_loss_epoch"),
            whole.run_history().get_latest_metric("train_size_loss_epoch"));
}

}  // namespace
}  // namespace linkboy::testing::tracked_loss_test
