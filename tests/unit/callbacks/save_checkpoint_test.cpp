#include "linkboy/callbacks/save_checkpoint.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "linkboy/callbacks/callback_factory.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::save_checkpoint_test {
namespace {

class SaveCheckpointTest : public ::testing::Test {
 protected:
  /// Trains with two updates per epoch.
  void train(Toy& toy, int64_t num_epochs, std::optional<std::filesystem::path> resume_from = {}) {
    toy.trainer.train({.train_dataset = toy_data(8),
                       .num_epochs = num_epochs,
                       .per_device_batch_size = 4,
                       .create_scheduler_fn = cosine({.num_updates = 20}),
                       .resume_from = std::move(resume_from)});
  }

  std::shared_ptr<SaveCheckpoint> saving(SaveCheckpointOptions options) {
    options.directory = checkpoints_;
    return std::make_shared<SaveCheckpoint>(std::move(options));
  }

  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints_)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  TemporaryFolder folder_;
  std::filesystem::path checkpoints_ = folder_ / "checkpoints";
};

using Names = std::set<std::string>;

TEST_F(SaveCheckpointTest, SavesAfterEveryEpochByDefault) {
  Toy toy({saving({})});
  train(toy, 3);
  EXPECT_EQ(files(), (Names{"epoch_1.pt", "epoch_2.pt", "epoch_3.pt"}));
  const StateDict saved = read_checkpoint(checkpoints_ / "epoch_2.pt");
  EXPECT_EQ(saved.get_int("epoch"), 2);
  EXPECT_EQ(saved.get_int("num_updates"), 4);
}

TEST_F(SaveCheckpointTest, SavesAfterEveryNthEpochAndUpdate) {
  Toy toy({saving({.every_n_epochs = 2, .every_n_updates = 3})});
  train(toy, 4);
  EXPECT_EQ(files(), (Names{"epoch_2.pt", "epoch_4.pt", "update_3.pt", "update_6.pt"}));
}

TEST_F(SaveCheckpointTest, KeepsTheNewestFilesAcrossAResume) {
  Toy toy({saving({.keep_last = 2})});
  train(toy, 3);
  EXPECT_EQ(files(), (Names{"epoch_2.pt", "epoch_3.pt"}));
  toy.trainer.save_training_state(folder_ / "state");
  Toy resumed({saving({.keep_last = 2})});
  train(resumed, 4, folder_ / "state");
  EXPECT_EQ(files(), (Names{"epoch_3.pt", "epoch_4.pt"}));
}

TEST_F(SaveCheckpointTest, KeepsTheCheckpointsOfAnotherRun) {
  Toy toy({saving({})});
  train(toy, 2);
  Toy other({saving({.keep_last = 1})});
  train(other, 1);
  EXPECT_EQ(files(), (Names{"epoch_1.pt", "epoch_2.pt"}));
}

TEST_F(SaveCheckpointTest, AFileThatCannotBeWrittenDoesNotEndTheRun) {
  std::filesystem::create_directories(checkpoints_ / "epoch_2.pt" / "in_the_way");
  Toy toy({saving({})});
  train(toy, 3);
  EXPECT_TRUE(std::filesystem::is_regular_file(checkpoints_ / "epoch_3.pt"));
  const auto& lines = toy.trainer.lines;
  EXPECT_EQ(
      std::count_if(lines.begin(), lines.end(),
                    [](const std::string& line) {
                      return line.starts_with("ERROR: the checkpoint epoch_2.pt was not saved: ");
                    }),
      1);
}

TEST_F(SaveCheckpointTest, ADirectoryThatCannotBeWrittenEndsTheRunAtItsStart) {
  std::ofstream(checkpoints_.string()) << "a file";
  Toy toy({saving({})});
  EXPECT_ERROR(train(toy, 1), "checkpoints");
}

TEST_F(SaveCheckpointTest, OptionsOutOfRangeAreErrors) {
  EXPECT_ERROR(saving({.every_n_epochs = 0}), "every_n_epochs is 0");
  EXPECT_ERROR(saving({.every_n_updates = -1}), "every_n_updates is -1");
  EXPECT_ERROR(saving({.keep_last = 0}), "keep_last is 0");
}

TEST_F(SaveCheckpointTest, ARunStartsFromTheModelOptimizerAndScheduleOfALoadedCheckpoint) {
  std::vector<torch::Tensor> after_epoch_2;
  double lr_after_epoch_2 = 0.0;
  Toy toy({saving({})});
  toy.trainer.callback_handler().add(
      make<LambdaCallback>({.on_training_run_epoch_end = [&](Trainer& trainer) {
        if (trainer.run_history().current_epoch() != 2) return;
        after_epoch_2 = copies_of(toy.model->parameters());
        lr_after_epoch_2 = get_param_group_field(*toy.optimizer, ParamGroupField::lr).front();
      }}));
  train(toy, 3);
  Toy loading(
      {make_callback("load-checkpoint", {{"path", checkpoints_.string()}, {"epoch", "2"}})});
  bool has_started = false;
  loading.trainer.callback_handler().add(
      make<LambdaCallback>({.on_train_epoch_start = [&](Trainer& trainer) {
        has_started = true;
        EXPECT_TRUE(bit_equal(loading.model->parameters(), after_epoch_2));
        EXPECT_EQ(loading.optimizer->state().size(), 4);
        EXPECT_EQ(trainer.scheduler()->num_updates(), 4);
        EXPECT_EQ(get_param_group_field(*loading.optimizer, ParamGroupField::lr).front(),
                  lr_after_epoch_2);
        EXPECT_EQ(trainer.num_updates(), 0);
      }}));
  train(loading, 1);
  EXPECT_TRUE(has_started);
}

TEST_F(SaveCheckpointTest, AnEvaluationLoadsOnlyTheModel) {
  Toy toy({saving({})});
  train(toy, 2);
  const auto trained = copies_of(toy.model->parameters());
  Toy fresh({std::make_shared<LoadCheckpoint>(LoadCheckpointOptions{.path = checkpoints_})});
  fresh.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_TRUE(bit_equal(fresh.model->parameters(), trained));
  EXPECT_TRUE(fresh.optimizer->state().empty());
}

TEST_F(SaveCheckpointTest, AResumedRunLoadsNoCheckpoint) {
  Toy toy({saving({})});
  train(toy, 2);
  toy.trainer.save_training_state(folder_ / "state");
  Toy straight;
  train(straight, 3);
  Toy resumed(
      {std::make_shared<LoadCheckpoint>(LoadCheckpointOptions{.path = checkpoints_, .epoch = 1})});
  train(resumed, 3, folder_ / "state");
  EXPECT_TRUE(bit_equal(resumed.model->parameters(), straight.model->parameters()));
}

TEST_F(SaveCheckpointTest, ARunWithoutTheSavedScheduleKeepsItsLearningRate) {
  Toy toy({saving({})});
  train(toy, 3);
  Toy plain;
  Toy loading({make<LoadCheckpoint>({.path = checkpoints_, .load_scheduler = false})});
  std::vector<double> rates;
  for (Toy* each : {&plain, &loading}) {
    each->trainer.callback_handler().add(
        make<LambdaCallback>({.on_train_epoch_start = [&, each](Trainer&) {
          rates.push_back(get_param_group_field(*each->optimizer, ParamGroupField::lr).front());
        }}));
    train(*each, 1);
  }
  ASSERT_EQ(rates.size(), 2);
  EXPECT_EQ(rates[0], rates[1]);
}

TEST_F(SaveCheckpointTest, ACheckpointIsLoadedOnceAndNeverOverwritesTrainedWeights) {
  Toy toy({saving({})});
  train(toy, 2);
  const auto pretrained = copies_of(toy.model->parameters());
  const auto callback = make<LoadCheckpoint>({.path = checkpoints_});
  Toy tuned({callback});
  train(tuned, 1);
  const auto trained = copies_of(tuned.model->parameters());
  EXPECT_FALSE(bit_equal(trained, pretrained));
  tuned.trainer.evaluate({.dataset = toy_data(4)});
  tuned.trainer.predict({.dataset = toy_data(4)});
  EXPECT_TRUE(bit_equal(tuned.model->parameters(), trained));

  Toy other({callback});
  other.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_TRUE(bit_equal(other.model->parameters(), pretrained)) << "of another Trainer";
  train(other, 1);
  EXPECT_TRUE(bit_equal(other.model->parameters(), trained)) << "with the optimizer too";
}

TEST_F(SaveCheckpointTest, PredictionsLoadTheModel) {
  Toy toy({saving({})});
  train(toy, 2);
  Toy fresh({make<LoadCheckpoint>({.path = checkpoints_})});
  fresh.trainer.predict({.dataset = toy_data(4)});
  EXPECT_TRUE(bit_equal(fresh.model->parameters(), toy.model->parameters()));
}

TEST_F(SaveCheckpointTest, AnEpochWithoutACheckpointIsAnErrorThatListsTheOthers) {
  EXPECT_ERROR(checkpoint_of_epoch(checkpoints_, 4), "there is no checkpoint of epoch 4");
  EXPECT_ERROR(checkpoint_of_epoch(checkpoints_), "there is no checkpoint in");
  Toy toy({saving({})});
  train(toy, 3);
  std::ofstream(checkpoints_ / "epoch_12x.pt") << "not one of them";
  EXPECT_ERROR(checkpoint_of_epoch(checkpoints_, 4),
               "there are checkpoints of the epochs 1, 2, 3.");
  EXPECT_EQ(checkpoint_of_epoch(checkpoints_), checkpoints_ / "epoch_3.pt");
  Toy loading(
      {std::make_shared<LoadCheckpoint>(LoadCheckpointOptions{.path = checkpoints_, .epoch = 4})});
  EXPECT_ERROR(train(loading, 1), "there is no checkpoint of epoch 4");
}

}  // namespace
}  // namespace linkboy::testing::save_checkpoint_test
