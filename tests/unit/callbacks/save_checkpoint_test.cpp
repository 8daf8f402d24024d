#include "linkboy/callbacks/save_checkpoint.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "linkboy/callbacks/callback_factory.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/matchers.hpp"
#include "support/skipping_trainer.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::save_checkpoint_test {
namespace {

std::vector<std::string> names_of(const SaveCheckpoint& save) {
  std::vector<std::string> names;
  for (const auto& file : save.saved()) names.push_back(file.path.filename().string());
  return names;
}

class SaveCheckpointTest : public ::testing::Test {
 protected:
  /// Trains with two updates per epoch.
  static void train(Toy& toy, int64_t num_epochs,
                    std::optional<std::filesystem::path> resume_from = {}) {
    toy.trainer.train({.train_dataset = toy_data(8),
                       .per_device_batch_size = 4,
                       .num_epochs = num_epochs,
                       .create_scheduler_fn = cosine({.num_updates = 20}),
                       .resume_from = std::move(resume_from)});
  }

  std::shared_ptr<SaveCheckpoint> saving(SaveCheckpointOptions options = {}) const {
    options.directory = checkpoints_;
    return std::make_shared<SaveCheckpoint>(std::move(options));
  }
  std::shared_ptr<LoadCheckpoint> loading(LoadCheckpointOptions options = {}) const {
    options.path = checkpoints_;
    return std::make_shared<LoadCheckpoint>(std::move(options));
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
  Toy toy_{{saving()}};  // saves a checkpoint after every epoch
};

TEST_F(SaveCheckpointTest, SavesAfterEveryEpochByDefault) {
  train(toy_, 3);
  EXPECT_THAT(files(), ElementsAre("epoch_1.pt", "epoch_2.pt", "epoch_3.pt"));
  const StateDict saved = read_checkpoint(checkpoints_ / "epoch_2.pt");
  EXPECT_EQ(saved.get_int("epoch"), 2);
  EXPECT_EQ(saved.get_int("num_updates"), 4);
}

TEST_F(SaveCheckpointTest, SavesAfterEveryNthEpochAndUpdate) {
  Toy toy({saving({.every_n_epochs = 2, .every_n_updates = 3})});
  train(toy, 4);
  EXPECT_THAT(files(), ElementsAre("epoch_2.pt", "epoch_4.pt", "update_3.pt", "update_6.pt"));
}

TEST_F(SaveCheckpointTest, ASecondRunSavesAnUpdateOfTheSameNumber) {
  const auto save = saving({.every_n_updates = 1});
  Toy toy({save});
  for (int run = 0; run < 2; ++run) {
    toy.train({.max_num_updates = 1});
    EXPECT_THAT(names_of(*save), ElementsAre("update_1.pt"));
  }
}

TEST_F(SaveCheckpointTest, SkippedUpdatesDoNotSaveAgain) {
  const auto save = saving({.every_n_epochs = 1, .every_n_updates = 2});
  ToyOf<SkippingTrainer> toy({save});
  toy.trainer.skipped_steps = {1, 4};
  toy.train({.per_device_batch_size = 3, .num_epochs = 2});  // 3 steps in each epoch
  EXPECT_THAT(names_of(*save),
              ElementsAre("epoch_2.pt", "update_4.pt", "epoch_1.pt", "update_2.pt"));
}

TEST_F(SaveCheckpointTest, KeepsTheNewestFilesAcrossAResume) {
  Toy toy({saving({.keep_last = 2})});
  train(toy, 3);
  EXPECT_THAT(files(), ElementsAre("epoch_2.pt", "epoch_3.pt"));
  toy.trainer.save_training_state(folder_ / "state");
  Toy resumed({saving({.keep_last = 2})});
  train(resumed, 4, folder_ / "state");
  EXPECT_THAT(files(), ElementsAre("epoch_3.pt", "epoch_4.pt"));
}

TEST_F(SaveCheckpointTest, ANameThatIsNotOfACheckpointIsAnErrorAndRemovesNothing) {
  const auto save = saving({.keep_last = 1});
  const auto load = [&](const std::string& name) {
    c10::impl::GenericList files(c10::AnyType::get());
    files.push_back(StateDict{{"name", name}, {"epoch", 1}});
    save->load_state_dict({{"files", files}, {"directory", checkpoints_.string()}});
  };
  load("update_12.pt");
  write_bytes(folder_ / "epoch_1.pt", "not a checkpoint of this run");
  for (const std::string& name :
       {(folder_ / "epoch_1.pt").string(), std::string("../epoch_1.pt"), std::string(".."),
        std::string("epoch_.pt"), std::string("epoch_1.pt/"), std::string("epoch_-1.pt"),
        std::string("epoch_1.pt\0/x.pt", 16), std::string("state-1"), std::string()}) {
    EXPECT_ERROR(load(name), "Do not trust this training state.");
    EXPECT_THAT(names_of(*save), ElementsAre("update_12.pt"));
  }
  Toy toy({save});
  train(toy, 2);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "epoch_1.pt"));
}

TEST_F(SaveCheckpointTest, KeepsTheCheckpointsOfAnotherRun) {
  train(toy_, 2);
  Toy other({saving({.keep_last = 1})});
  train(other, 1);
  EXPECT_THAT(files(), ElementsAre("epoch_1.pt", "epoch_2.pt"));
}

TEST_F(SaveCheckpointTest, ARunResumedIntoAnotherDirectoryKeepsTheFilesThere) {
  train(toy_, 2);
  Toy first({make<SaveCheckpoint>({.directory = folder_ / "old", .keep_last = 2})});
  train(first, 2);
  first.trainer.save_training_state(folder_ / "state");
  Toy resumed({saving({.keep_last = 1})});
  train(resumed, 4, folder_ / "state");
  EXPECT_THAT(files(), ElementsAre("epoch_1.pt", "epoch_2.pt", "epoch_4.pt"));
}

TEST_F(SaveCheckpointTest, AFileThatCannotBeWrittenDoesNotEndTheRun) {
  std::filesystem::create_directories(checkpoints_ / "epoch_2.pt" / "in_the_way");
  train(toy_, 3);
  EXPECT_TRUE(std::filesystem::is_regular_file(checkpoints_ / "epoch_3.pt"));
  EXPECT_THAT(toy_.trainer.lines,
              Contains(StartsWith("ERROR: the checkpoint epoch_2.pt was not saved: ")).Times(1));
}

TEST_F(SaveCheckpointTest, ADirectoryThatCannotBeWrittenEndsTheRunAtItsStart) {
  write_bytes(checkpoints_, "a file");
  EXPECT_ERROR(train(toy_, 1), "checkpoints");
}

TEST_F(SaveCheckpointTest, OptionsOutOfRangeAreErrors) {
  EXPECT_ERROR(saving({.every_n_epochs = 0}), "every_n_epochs is 0");
  EXPECT_ERROR(saving({.every_n_updates = -1}), "every_n_updates is -1");
  EXPECT_ERROR(saving({.keep_last = 0}), "keep_last is 0");
}

double lr_of(const Toy& toy) {
  return get_param_group_field(*toy.optimizer, ParamGroupField::lr).front();
}

TEST_F(SaveCheckpointTest, ARunStartsFromTheModelOptimizerAndScheduleOfALoadedCheckpoint) {
  std::vector<torch::Tensor> after_epoch_2;
  double lr_after_epoch_2 = 0.0;
  toy_.trainer.callback_handler().add(
      make<LambdaCallback>({.on_training_run_epoch_end = [&](Trainer& trainer) {
        if (trainer.run_history().current_epoch() != 2) return;
        after_epoch_2 = copies_of(toy_.model->parameters());
        lr_after_epoch_2 = lr_of(toy_);
      }}));
  train(toy_, 3);
  Toy tuned({make_callback("load-checkpoint", {{"path", checkpoints_.string()}, {"epoch", "2"}})});
  bool has_started = false;
  tuned.trainer.callback_handler().add(
      make<LambdaCallback>({.on_train_epoch_start = [&](Trainer& trainer) {
        has_started = true;
        EXPECT_TRUE(bit_equal(tuned.model->parameters(), after_epoch_2));
        EXPECT_EQ(tuned.optimizer->state().size(), 4);
        EXPECT_EQ(trainer.scheduler()->num_updates(), 4);
        EXPECT_EQ(lr_of(tuned), lr_after_epoch_2);
        EXPECT_EQ(trainer.num_updates(), 0);
      }}));
  train(tuned, 1);
  EXPECT_TRUE(has_started);
}

TEST_F(SaveCheckpointTest, EvaluationsAndPredictionsLoadOnlyTheModel) {
  train(toy_, 2);
  for (const bool predicts : {false, true}) {
    Toy fresh({loading()});
    const EvaluateOptions options{.dataset = toy_data(4)};
    if (predicts) {
      fresh.trainer.predict(options);
    } else {
      fresh.trainer.evaluate(options);
    }
    EXPECT_TRUE(bit_equal(fresh.model->parameters(), toy_.model->parameters()));
    EXPECT_TRUE(fresh.optimizer->state().empty());
  }
}

TEST_F(SaveCheckpointTest, AResumedRunLoadsNoCheckpoint) {
  train(toy_, 2);
  toy_.trainer.save_training_state(folder_ / "state");
  Toy straight;
  train(straight, 3);
  Toy resumed({loading({.epoch = 1})});
  train(resumed, 3, folder_ / "state");
  EXPECT_TRUE(bit_equal(resumed.model->parameters(), straight.model->parameters()));
}

TEST_F(SaveCheckpointTest, ARunWithoutTheSavedScheduleKeepsItsLearningRate) {
  train(toy_, 3);
  Toy plain;
  Toy tuned({loading({.load_scheduler = false})});
  std::vector<double> rates;
  for (Toy* each : {&plain, &tuned}) {
    each->trainer.callback_handler().add(make<LambdaCallback>(
        {.on_train_epoch_start = [&, each](Trainer&) { rates.push_back(lr_of(*each)); }}));
    train(*each, 1);
  }
  ASSERT_EQ(rates.size(), 2);
  EXPECT_EQ(rates[0], rates[1]);
}

TEST_F(SaveCheckpointTest, ACheckpointIsLoadedOnceAndNeverOverwritesTrainedWeights) {
  train(toy_, 2);
  const auto pretrained = toy_.model->parameters();
  const auto callback = loading();
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

TEST_F(SaveCheckpointTest, TheLastEpochIsThatOfTheNewestRun) {
  train(toy_, 11);
  EXPECT_EQ(checkpoint_of_epoch(checkpoints_), checkpoints_ / "epoch_11.pt");
  Toy shorter({saving()});
  train(shorter, 3);
  EXPECT_EQ(checkpoint_of_epoch(checkpoints_), checkpoints_ / "epoch_3.pt");
  EXPECT_EQ(checkpoint_of_epoch(checkpoints_, 5), checkpoints_ / "epoch_5.pt");
  Toy tuned({loading()});
  tuned.trainer.evaluate({.dataset = toy_data(4)});
  EXPECT_TRUE(bit_equal(tuned.model->parameters(), shorter.model->parameters()));
  // A run that resumes is the newest one.
  toy_.trainer.save_training_state(folder_ / "state");
  Toy resumed({saving()});
  train(resumed, 12, folder_ / "state");
  EXPECT_EQ(checkpoint_of_epoch(checkpoints_), checkpoints_ / "epoch_12.pt");
  // Files without the start of their run are older than all others.
  Toy plain;
  plain.trainer.save_checkpoint(checkpoints_ / "epoch_20.pt");
  EXPECT_EQ(checkpoint_of_epoch(checkpoints_), checkpoints_ / "epoch_12.pt");
}

TEST_F(SaveCheckpointTest, AnEpochWithoutACheckpointIsAnErrorThatListsTheOthers) {
  EXPECT_ERROR(checkpoint_of_epoch(checkpoints_, 4), "there is no checkpoint of epoch 4");
  EXPECT_ERROR(checkpoint_of_epoch(checkpoints_), "there is no checkpoint in");
  train(toy_, 3);
  write_bytes(checkpoints_ / "epoch_12x.pt", "not one of them");
  EXPECT_ERROR(checkpoint_of_epoch(checkpoints_, 4),
               "there are checkpoints of the epochs 1, 2, 3.");
  EXPECT_EQ(checkpoint_of_epoch(checkpoints_), checkpoints_ / "epoch_3.pt");
  Toy tuned({loading({.epoch = 4})});
  EXPECT_ERROR(train(tuned, 1), "there is no checkpoint of epoch 4");
}

}  // namespace
}  // namespace linkboy::testing::save_checkpoint_test
