// Losses that are tracked in addition to the main one.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/at_update.hpp"
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
    output.extras.set("later_loss", torch::ones({}));
    return output;
  }
};

TEST(TrackLossTest, RecordsTheExactMeanNextToTheMainLoss) {
  ToyOf<TwoLosses> toy;
  toy.trainer.track_loss("size_loss");
  toy.train({.train_dataset = toy_data(10), .per_device_batch_size = 4});
  EXPECT_NEAR(toy.values("train_size_loss_epoch").at(0), toy.trainer.weighted_sum / 10.0, 1e-7);
}

TEST(TrackLossTest, IsRecordedInEvaluationsThatReturnIt) {
  for (const bool is_returned : {true, false}) {
    ToyOf<TwoLosses> toy;
    toy.trainer.evaluates_size = is_returned;
    toy.trainer.track_loss("size_loss");
    toy.train({.eval_dataset = toy_data(6)});
    EXPECT_EQ(toy.values("eval_size_loss_epoch").size(), is_returned);
    EXPECT_EQ(toy.trainer.evaluate({.dataset = toy_data(6)}).count("evaluation_size_loss"),
              is_returned);
  }
}

TEST(TrackLossTest, RefusesNamesThatAreTakenAndRunsInProgress) {
  Toy toy;
  toy.trainer.track_loss("box_loss");
  EXPECT_ERROR(toy.trainer.track_loss("box_loss"), "already tracked");
  EXPECT_ERROR(toy.trainer.track_loss("loss"), "\"loss\"");
  EXPECT_ERROR(toy.trainer.track_loss(""), "must not be empty");
  Toy late({std::make_shared<AtUpdate>(1, [](Trainer& trainer) { trainer.track_loss("late"); })});
  EXPECT_ERROR(late.train(), "cannot be added during a run");
}

TEST(TrackLossTest, AnEpochResumedInItsMiddleHasTheSameMean) {
  const SingleThread one_thread;
  const TemporaryFolder folder;
  TrainOptions options{.train_dataset = toy_data(20), .per_device_batch_size = 4};
  ToyOf<TwoLosses> whole({std::make_shared<AtUpdate>(
      2, [&](Trainer& trainer) { trainer.save_training_state(folder / "state"); })});
  whole.trainer.track_loss("size_loss");
  torch::manual_seed(1);
  whole.train(options);

  ToyOf<TwoLosses> resumed;
  resumed.trainer.track_loss("size_loss");
  resumed.trainer.track_loss("later_loss");  // was not tracked when the state was saved
  options.resume_from = folder / "state";
  resumed.train(options);
  EXPECT_EQ(resumed.values("train_size_loss_epoch"), whole.values("train_size_loss_epoch"));
  EXPECT_EQ(resumed.values("train_later_loss_epoch"), std::vector<double>{1.0});
}

}  // namespace
}  // namespace linkboy::testing::tracked_loss_test
