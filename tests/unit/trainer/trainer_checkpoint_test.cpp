// Checkpoints and training states of a Trainer.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::trainer_checkpoint_test {
namespace {

TrainOptions four_updates_per_epoch(int64_t num_epochs) {
  return {
      .train_dataset = toy_data(14),
      .num_epochs = num_epochs,
      .eval_dataset = toy_data(6),
      .per_device_batch_size = 2,
      .gradient_accumulation_steps = 2,
      .create_scheduler_fn = cosine({.warmup_updates = 0.5 * placeholders::num_updates_per_epoch})};
}

TEST(TrainerCheckpointTest, RestoresModelOptimizerSchedulerAndExtras) {
  const TemporaryFolder folder;
  Toy toy;
  toy.trainer.train(four_updates_per_epoch(2));
  toy.trainer.save_checkpoint(folder / "x.pt", {{"note", std::string("hello")}, {"epoch", 2}});
  const auto saved = copies_of(toy.model->parameters());
  const auto lr = get_param_group_field(*toy.optimizer, ParamGroupField::lr);

  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : toy.model->parameters()) parameter.fill_(999);
  }
  set_param_group_field(*toy.optimizer, ParamGroupField::lr, {7.0});
  const StateDict extras = toy.trainer.load_checkpoint(folder / "x.pt");
  EXPECT_TRUE(bit_equal(saved, toy.model->parameters()));
  EXPECT_EQ(get_param_group_field(*toy.optimizer, ParamGroupField::lr), lr);
  EXPECT_EQ(toy.trainer.scheduler()->num_updates(), 8);
  EXPECT_EQ(extras.get_string("note"), "hello");
  EXPECT_EQ(extras.get_int("epoch"), 2);
  EXPECT_EQ(extras.size(), 2U);
}

TEST(TrainerCheckpointTest, PartsCanBeOmitted) {
  const TemporaryFolder folder;
  Toy toy;
  toy.trainer.train(four_updates_per_epoch(1));
  toy.trainer.save_checkpoint(folder / "x.pt", {}, {.optimizer = false, .scheduler = false});
  const auto contents = read_checkpoint(folder / "x.pt");
  EXPECT_TRUE(contents.contains("model_state_dict"));
  EXPECT_FALSE(contents.contains("optimizer_state_dict"));
  EXPECT_FALSE(contents.contains("scheduler_state_dict"));
}

TEST(TrainerCheckpointTest, LoadsCommonPartsAndReportsTheOthers) {
  const TemporaryFolder folder;
  Toy toy;
  toy.trainer.train(four_updates_per_epoch(1));
  toy.trainer.save_checkpoint(folder / "x.pt");
  Toy without_scheduler;
  without_scheduler.trainer.load_checkpoint(folder / "x.pt");
  EXPECT_TRUE(bit_equal(toy.model->parameters(), without_scheduler.model->parameters()));
  ASSERT_EQ(without_scheduler.trainer.lines.size(), 1U);
  EXPECT_NE(without_scheduler.trainer.lines[0].find("without the scheduler's state,"),
            std::string::npos);
  without_scheduler.trainer.load_checkpoint(folder / "x.pt", {.scheduler = false});
  EXPECT_EQ(without_scheduler.trainer.lines.size(), 1U)
      << "parts that are not requested are not reported";
  QuietTrainer without_optimizer(toy_model(), nullptr, nullptr,
                                 {.callbacks = {}, .accelerator = {.device = "cpu"}});
  without_optimizer.load_checkpoint(folder / "x.pt");
  EXPECT_NE(without_optimizer.lines.at(0).find("the optimizer's state, the scheduler's state"),
            std::string::npos);
  without_optimizer.save_checkpoint(folder / "model.pt");
  Toy other;
  other.trainer.load_checkpoint(folder / "model.pt");
  EXPECT_EQ(other.trainer.lines.at(0),
            "Loaded " + (folder / "model.pt").string() +
                " without the optimizer's state, because it is not in the file");
}

TEST(TrainerCheckpointTest, RejectsAnExtraWithALinkboyName) {
  const TemporaryFolder folder;
  Toy toy;
  EXPECT_ERROR(toy.trainer.save_checkpoint(folder / "x.pt", {{"model_state_dict", 1}}),
               "a name that linkboy itself uses");
  EXPECT_TRUE(folder.names().empty());
}

TEST(TrainerCheckpointTest, AnotherArchitectureIsRefusedWithItsDifferencesAndChangesNothing) {
  const TemporaryFolder folder;
  Toy toy;
  toy.trainer.save_checkpoint(folder / "x.pt");
  torch::nn::Sequential other(torch::nn::Linear(4, 6), torch::nn::Linear(6, 3));
  auto optimizer = toy_sgd(other);
  QuietTrainer trainer(other, nullptr, optimizer,
                       {.callbacks = {}, .accelerator = {.device = "cpu"}});
  const auto before = copies_of(other->parameters());
  EXPECT_ERROR(trainer.load_checkpoint(folder / "x.pt"), "missing: 1.weight, 1.bias");
  EXPECT_ERROR(trainer.load_checkpoint(folder / "x.pt"), "unexpected: 2.weight, 2.bias");
  EXPECT_ERROR(trainer.load_checkpoint(folder / "x.pt"), "0.weight (is [5, 4], must be [6, 4])");
  EXPECT_TRUE(bit_equal(before, other->parameters()));
}

TEST(TrainerCheckpointTest, FileWithoutAModelIsRefused) {
  const TemporaryFolder folder;
  Toy toy;
  write_checkpoint(folder / "bare.pt", Model(toy.model).state_dict());
  EXPECT_ERROR(toy.trainer.load_checkpoint(folder / "bare.pt"), "has no \"model_state_dict\"");
}

/// Saves a training state after each update up to `update`, or at the end of each epoch up to it;
/// the last state remains. (In pytorch-accelerated, only the first state of a run with a scheduler
/// could be loaded.)
class SaveAt : public Callback {
 public:
  SaveAt(std::filesystem::path folder, int64_t update, bool at_epoch_end = false)
      : folder_(std::move(folder)), update_(update), at_epoch_end_(at_epoch_end) {}
  void on_train_update_end(Trainer& trainer) override {
    if (!at_epoch_end_ && trainer.num_updates() <= update_) trainer.save_training_state(folder_);
  }
  void on_training_run_epoch_end(Trainer& trainer) override {
    if (at_epoch_end_ && trainer.num_updates() <= update_) trainer.save_training_state(folder_);
  }

 private:
  std::filesystem::path folder_;
  int64_t update_;
  bool at_epoch_end_;
};

/// The toy model with dropout, so that random numbers have an effect.
struct Noisy {
  explicit Noisy(CallbackList callbacks)
      : model(torch::nn::Linear(4, 8), torch::nn::Dropout(0.5), torch::nn::Linear(8, 3)),
        optimizer(toy_sgd(model)),
        trainer(model, torch::nn::CrossEntropyLoss(), optimizer,
                {.callbacks = std::move(callbacks), .accelerator = {.device = "cpu"}}) {}

  torch::nn::Sequential model;
  std::shared_ptr<torch::optim::SGD> optimizer;
  QuietTrainer trainer;
};

void expect_resumed_equals_uninterrupted(int64_t update, bool at_epoch_end) {
  const TemporaryFolder folder;
  torch::manual_seed(3);
  Noisy whole({std::make_shared<SaveAt>(folder.path(), update, at_epoch_end)});
  whole.trainer.train(four_updates_per_epoch(3));

  torch::manual_seed(4);  // the state restores the seed, also that of the shuffling
  Noisy resumed({});
  TrainOptions options = four_updates_per_epoch(3);
  options.resume_from = folder.path();
  torch::rand({5});  // numbers drawn earlier by the process have no effect
  const auto result = resumed.trainer.train(options);
  EXPECT_EQ(result.num_updates, 12);
  EXPECT_EQ(result.num_epochs, 3);
  EXPECT_TRUE(bit_equal(whole.model->parameters(), resumed.model->parameters()));
  for (const char* metric : {"train_loss_epoch", "eval_loss_epoch"}) {
    EXPECT_EQ(whole.trainer.run_history().get_metric_values(metric),
              resumed.trainer.run_history().get_metric_values(metric));
  }
  EXPECT_EQ(resumed.trainer.run_history().current_epoch(), 4);
}

TEST(TrainingStateTest, ARunResumedAtAnyUpdateIsBitIdenticalToTheUninterruptedOne) {
  for (int64_t update = 1; update <= 12; ++update) {
    SCOPED_TRACE(update);
    expect_resumed_equals_uninterrupted(update, /*at_epoch_end=*/false);
  }
}

TEST(TrainingStateTest, ARunResumedAtTheEndOfAnEpochDoesNotRepeatTheEpoch) {
  // pytorch-accelerated repeated the completed epoch.
  for (int64_t update : {4, 8}) {
    SCOPED_TRACE(update);
    expect_resumed_equals_uninterrupted(update, /*at_epoch_end=*/true);
  }
}

TEST(TrainingStateTest, BelongsToItsRunEvenIfThePreviousOneEndedInAnEvaluation) {
  // A run that ends in an evaluation keeps the state of its last update, which is saved afterwards.
  class StopInEvaluation : public Callback {
    void on_eval_step_start(Trainer& trainer) override { trainer.request_stop(); }
  };
  const TemporaryFolder folder;
  Toy toy({std::make_shared<StopInEvaluation>(), std::make_shared<SaveAt>(folder.path(), 1)});
  TrainOptions options = four_updates_per_epoch(1);
  EXPECT_EQ(toy.trainer.train(options).reason, StopReason::stop_request);
  options.eval_dataset = {};
  toy.trainer.train(options);
  const StateDict state = read_checkpoint(folder / kTrainingStateFile).get_dict("training_state");
  EXPECT_EQ(state.get_int("num_updates"), 1);
}

/// Saves after `update` in a run over 50 samples in 7 batches, the last of which is shorter.
void save_of_short_epoch(const std::filesystem::path& folder, int64_t update) {
  Toy toy({std::make_shared<SaveAt>(folder, update)});
  toy.trainer.train({.train_dataset = toy_data(50),
                     .num_epochs = 2,
                     .per_device_batch_size = 8,
                     .gradient_accumulation_steps = 2,
                     .train_dataloader_options = {.seed = 5}});
}

TrainOptions resume_of_short_epoch(const std::filesystem::path& folder) {
  return {.train_dataset = toy_data(50),
          .num_epochs = 2,
          .per_device_batch_size = 8,
          .train_dataloader_options = {.seed = 5},
          .resume_from = folder,
          .allow_changed_schedule_length = true};
}

TEST(TrainingStateTest, AnEpochsLastUpdateResumesWithBatchesOfAnySize) {
  const TemporaryFolder folder;
  save_of_short_epoch(folder.path(), 4);
  for (const int64_t batch_size : {4, 8, 16}) {
    SCOPED_TRACE(batch_size);
    Toy toy;
    TrainOptions options = resume_of_short_epoch(folder.path());
    options.per_device_batch_size = batch_size;
    const auto result = toy.trainer.train(options);
    EXPECT_EQ(result.num_epochs, 2);
    EXPECT_EQ(toy.trainer.run_history().get_metric_values("train_loss_epoch").size(), 2U);
  }
}

TEST(TrainingStateTest, AnIncompleteWindowOfAnotherLengthIsRefused) {
  const TemporaryFolder folder;
  save_of_short_epoch(folder.path(), 1);
  TrainOptions options = resume_of_short_epoch(folder.path());
  options.gradient_accumulation_steps = 4;
  Toy toy;
  EXPECT_ERROR(toy.trainer.train(options),
               "after 2 batches of this run, where no accumulation window of 4 batches ends");
  options.gradient_accumulation_steps = 1;
  EXPECT_EQ(toy.trainer.train(options).num_epochs, 2);
}

TEST(TrainingStateTest, StatesOfAHostWithMoreDevicesResume) {
  const TemporaryFolder folder;
  save_of_short_epoch(folder.path(), 4);
  const auto path = folder / kTrainingStateFile;
  StateDict contents = read_checkpoint(path);
  StateDict state = contents.get_dict("training_state");
  StateDict rank = StateDict::from_ivalue(state.get_list("ranks")[0], "ranks");
  StateDict rng = rank.get_dict("rng");
  for (const char* device : {"cuda:0", "cuda:1"}) rng.set(device, torch::zeros({16}, torch::kByte));
  rank.set("rng", rng);
  c10::impl::GenericList ranks(c10::AnyType::get());
  ranks.push_back(rank.to_ivalue());
  state.set("ranks", ranks);
  contents.set("training_state", state);
  write_checkpoint(path, contents);
  Toy toy;
  EXPECT_EQ(toy.trainer.train(resume_of_short_epoch(folder.path())).num_epochs, 2);
}

TEST(TrainingStateTest, CannotBeSavedInMidUpdate) {
  class SaveInStep : public Callback {
    void on_train_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
      trainer.save_training_state("never-made");
    }
  };
  Toy toy({std::make_shared<SaveInStep>()});
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(4), .num_epochs = 1}),
               "cannot be saved here");
  EXPECT_FALSE(std::filesystem::exists("never-made"));
}

TEST(TrainingStateTest, ATrainerWithoutAnOptimizerLoadsTheRestAndReportsIt) {
  const TemporaryFolder folder;
  Toy toy;
  toy.trainer.train(four_updates_per_epoch(1));
  toy.trainer.save_training_state(folder.path());
  const auto model = toy_model();
  QuietTrainer other(model, nullptr, nullptr, {.callbacks = {}, .accelerator = {.device = "cpu"}});
  StateDict contents = read_checkpoint(folder / kTrainingStateFile);
  contents.erase("scheduler_state_dict");
  write_checkpoint(folder / kTrainingStateFile, contents);
  EXPECT_TRUE(other.load_training_state(folder.path()));
  EXPECT_TRUE(bit_equal(model->parameters(), toy.model->parameters()));
  EXPECT_NE(other.lines.at(0).find("without the optimizer's state"), std::string::npos);
}

TEST(TrainingStateTest, AFolderWithoutAStateIsRefused) {
  const TemporaryFolder folder;
  Toy toy;
  EXPECT_ERROR(toy.trainer.load_training_state(folder.path()), "contains no training state");
  EXPECT_ERROR(toy.trainer.load_training_state(folder / "none"),
               "does not exist. Name an existing training state");
  EXPECT_THROW(toy.trainer.load_training_state(folder / "none"), FileError);
}

TEST(TrainingStateTest, AFileInPlaceOfAFolderOfStatesIsRefused) {
  const TemporaryFolder folder;
  Toy toy;
  toy.trainer.save_checkpoint(folder / "model.pt");
  const auto load = [&](const std::filesystem::path& path) {
    toy.trainer.load_training_state(folder / path);
  };
  EXPECT_ERROR(load("model.pt"), "model.pt\" is a file");
  EXPECT_ERROR(load("model.pt/latest"), "model.pt\" is a file");
  EXPECT_ERROR(load("model.pt/states/latest"), "lies below a file");
}

}  // namespace
}  // namespace linkboy::testing::trainer_checkpoint_test
