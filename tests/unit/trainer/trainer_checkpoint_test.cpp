// Checkpoints and training states of a Trainer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/at_update.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/matchers.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::trainer_checkpoint_test {
namespace {

TrainOptions four_updates_per_epoch(int64_t num_epochs) {
  return {
      .train_dataset = toy_data(14),
      .eval_dataset = toy_data(6),
      .per_device_batch_size = 2,
      .num_epochs = num_epochs,
      .gradient_accumulation_steps = 2,
      .create_scheduler_fn = cosine({.warmup_updates = 0.5 * placeholders::num_updates_per_epoch})};
}

TEST(TrainerCheckpointTest, RestoresModelOptimizerSchedulerAndExtras) {
  const TemporaryFolder folder;
  Toy toy;
  toy.train(four_updates_per_epoch(2));
  toy.trainer.save_checkpoint(folder / "x.pt", {{"note", std::string("hello")}, {"epoch", 2}});
  const auto saved = copies_of(toy.model->parameters());
  const auto lr = rates_of(*toy.optimizer);

  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : toy.model->parameters()) parameter.fill_(999);
  }
  set_param_group_field(*toy.optimizer, ParamGroupField::lr, {7.0});
  const StateDict extras = toy.trainer.load_checkpoint(folder / "x.pt");
  EXPECT_TRUE(bit_equal(saved, toy.model->parameters()));
  EXPECT_EQ(rates_of(*toy.optimizer), lr);
  EXPECT_EQ(toy.trainer.scheduler()->num_updates(), 8);
  EXPECT_EQ(extras.get_string("note"), "hello");
  EXPECT_EQ(extras.get_int("epoch"), 2);
  EXPECT_EQ(extras.size(), 2U);
}

TEST(TrainerCheckpointTest, PartsCanBeOmitted) {
  const TemporaryFolder folder;
  Toy toy;
  toy.train(four_updates_per_epoch(1));
  toy.trainer.save_checkpoint(folder / "x.pt", {}, {.optimizer = false, .scheduler = false});
  const auto contents = read_checkpoint(folder / "x.pt");
  EXPECT_TRUE(contents.contains("model_state_dict"));
  EXPECT_FALSE(contents.contains("optimizer_state_dict"));
  EXPECT_FALSE(contents.contains("scheduler_state_dict"));

  toy.trainer.save_checkpoint(folder / "all.pt");
  Toy fresh;
  fresh.trainer.load_checkpoint(folder / "all.pt", {.optimizer = false});
  EXPECT_TRUE(bit_equal(fresh.model->parameters(), toy.model->parameters()));
  EXPECT_TRUE(fresh.optimizer->state().empty());
}

TEST(TrainerCheckpointTest, LoadsCommonPartsAndReportsTheOthers) {
  const TemporaryFolder folder;
  Toy toy;
  toy.train(four_updates_per_epoch(1));
  toy.trainer.save_checkpoint(folder / "x.pt");
  Toy without_scheduler;
  without_scheduler.trainer.load_checkpoint(folder / "x.pt");
  const auto& lines = without_scheduler.trainer.lines;
  EXPECT_TRUE(bit_equal(toy.model->parameters(), without_scheduler.model->parameters()));
  EXPECT_THAT(lines, ElementsAre(HasSubstr("without the scheduler's state,")));
  without_scheduler.trainer.load_checkpoint(folder / "x.pt", {.scheduler = false});
  EXPECT_EQ(lines.size(), 1U) << "parts that are not requested are not reported";
  QuietTrainer without_optimizer(toy_model(), nullptr, nullptr,
                                 {.default_callbacks = {}, .accelerator = {.device = "cpu"}});
  without_optimizer.load_checkpoint(folder / "x.pt");
  EXPECT_THAT(without_optimizer.lines,
              ElementsAre(HasSubstr("the optimizer's state, the scheduler's state")));
  const EvaluateOptions evaluation{.dataset = toy_data(6)};
  EXPECT_EQ(without_scheduler.trainer.evaluate(evaluation), toy.trainer.evaluate(evaluation));
  without_optimizer.save_checkpoint(folder / "model.pt");
  Toy other;
  other.trainer.load_checkpoint(folder / "model.pt");
  EXPECT_THAT(other.trainer.lines,
              ElementsAre("Loaded " + (folder / "model.pt").string() +
                          " without the optimizer's state, because it is not in the file"));
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
  auto trainer = cpu_trainer(other, {});
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

/// Saves a training state after the given update.
std::shared_ptr<Callback> save_at(const std::filesystem::path& folder, int64_t update) {
  return std::make_shared<AtUpdate>(
      update, [folder](Trainer& trainer) { trainer.save_training_state(folder); });
}

TEST(TrainingStateTest, BelongsToItsRunEvenIfThePreviousOneEndedInAnEvaluation) {
  // A run that ends in an evaluation keeps the state of its last update, which is saved afterwards.
  const TemporaryFolder folder;
  Toy toy({save_at(folder.path(), 1)});
  toy.on(Event::eval_step_start, [](Trainer& trainer) { trainer.request_stop(); });
  TrainOptions options = four_updates_per_epoch(1);
  EXPECT_EQ(toy.trainer.train(options).reason, StopReason::stop_request);
  options.eval_dataset = {};
  toy.trainer.train(options);
  const StateDict state = read_checkpoint(folder / kTrainingStateFile).get_dict("training_state");
  EXPECT_EQ(state.get_int("num_updates"), 1);
}

/// A run over 50 samples in 7 batches, the last of which is shorter.
struct ShortEpochTest : ::testing::Test {
  void save_after(int64_t update) {
    Toy toy({save_at(folder_.path(), update)});
    TrainOptions options = options_;
    options.gradient_accumulation_steps = 2;
    options.resume_from.reset();
    toy.train(options);
  }

  TemporaryFolder folder_;
  TrainOptions options_{.train_dataset = toy_data(50),
                        .train_dataloader_options = {.seed = 5},
                        .num_epochs = 2,
                        .resume_from = folder_.path(),
                        .allow_changed_schedule_length = true};
};

TEST_F(ShortEpochTest, AnEpochsLastUpdateResumesWithBatchesOfAnySize) {
  save_after(4);
  for (const int64_t batch_size : {4, 8, 16}) {
    SCOPED_TRACE(batch_size);
    Toy toy;
    options_.per_device_batch_size = batch_size;
    EXPECT_EQ(toy.train(options_).num_epochs, 2);
    EXPECT_EQ(toy.values("train_loss_epoch").size(), 2U);
  }
}

TEST_F(ShortEpochTest, AnIncompleteWindowOfAnotherLengthIsTrainedAgain) {
  save_after(1);
  options_.gradient_accumulation_steps = 4;
  Toy toy;
  ::testing::internal::CaptureStdout();
  const auto result = toy.train(options_);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              ::testing::HasSubstr("The last 16 samples are trained a second time"));
  EXPECT_EQ(toy.trainer.run().config().max_num_updates, result.num_updates);
  EXPECT_EQ(result.num_epochs, 2);
  EXPECT_EQ(result.num_updates, 1 + 2 * 2) << "the saved update and two whole epochs";
}

TEST_F(ShortEpochTest, StatesOfAHostWithMoreDevicesResume) {
  save_after(4);
  const auto path = folder_ / kTrainingStateFile;
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
  EXPECT_EQ(Toy().train(options_).num_epochs, 2);
}

TEST(TrainingStateTest, CannotBeSavedInMidUpdate) {
  Toy toy;
  toy.on(Event::train_step_end,
         [](Trainer& trainer) { trainer.save_training_state("never-made"); });
  EXPECT_ERROR(toy.train(), "cannot be saved here");
  EXPECT_FALSE(std::filesystem::exists("never-made"));
}

TEST(TrainingStateTest, ATrainerWithoutAnOptimizerLoadsTheRestAndReportsIt) {
  const TemporaryFolder folder;
  Toy toy;
  toy.train();
  toy.trainer.save_training_state(folder.path());
  const auto model = toy_model();
  QuietTrainer other(model, nullptr, nullptr,
                     {.default_callbacks = {}, .accelerator = {.device = "cpu"}});
  EXPECT_TRUE(other.load_training_state(folder.path()));
  EXPECT_TRUE(bit_equal(model->parameters(), toy.model->parameters()));
  EXPECT_THAT(other.lines, Contains(HasSubstr("without the optimizer's state")));
}

TEST(TrainingStateTest, APathWithoutAStateIsRefused) {
  const TemporaryFolder folder;
  Toy toy;
  toy.trainer.save_checkpoint(folder / "model.pt");
  const auto load = [&](const char* path) { toy.trainer.load_training_state(folder / path); };
  EXPECT_ERROR(load(""), "contains no training state");
  EXPECT_ERROR_AS(FileError, load("none"), "does not exist. Name an existing training state");
  EXPECT_ERROR(load("model.pt"), "model.pt\" is a file");
  EXPECT_ERROR(load("model.pt/latest"), "model.pt\" is a file");
  EXPECT_ERROR(load("model.pt/states/latest"), "lies below a file");
}

}  // namespace
}  // namespace linkboy::testing::trainer_checkpoint_test
