// The state of ModelEma, and runs that are resumed.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/checkpoint/training_state_folders.hpp"
#include "linkboy/schedulers/cosine_scheduler.hpp"
#include "support/at_update.hpp"
#include "support/averages.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::model_ema_state_test {
namespace {

TEST(ModelEmaStateTest, RejectsAStateOfAnotherModel) {
  AveragedWeights first;
  torch::nn::Linear narrow(2, 1);
  first.attach(Model(narrow));
  first.begin();
  AveragedWeights second;
  second.load_state_dict(first.state_dict());
  EXPECT_ERROR(second.attach(Model(torch::nn::Linear(3, 1)), true),
               "the saved average of \"weight\"");
}

/// A run with ModelEma and all other parts that have a state.
struct Rehearsal {
  explicit Rehearsal(int64_t last_update, ModelEmaOptions ema_options = {}) {
    torch::manual_seed(3);
    namespace nn = torch::nn;
    model =
        nn::Sequential(nn::Linear(4, 8), nn::BatchNorm1d(8), nn::Dropout(0.5), nn::Linear(8, 3));
    ema_options.start_after = 2;
    ema = std::make_shared<ModelEma>(ema_options);
    trainer = std::make_unique<QuietTrainer>(
        model, nn::CrossEntropyLoss(),
        std::make_shared<torch::optim::AdamW>(model->parameters(),
                                              torch::optim::AdamWOptions(0.01)),
        TrainerOptions{.callbacks = {ema, stop_at(last_update)}, .accelerator = {.device = "cpu"}});
    options = {.train_dataset = toy_data(14),
               .num_epochs = 3,
               .eval_dataset = toy_data(6),
               .per_device_batch_size = 2,
               .gradient_accumulation_steps = 2,
               .create_scheduler_fn = cosine()};
  }

  torch::nn::Sequential model;
  std::shared_ptr<ModelEma> ema;
  std::unique_ptr<QuietTrainer> trainer;
  TrainOptions options;
};

TEST(ModelEmaStateTest, AResumedRunIsBitIdenticalToTheUninterruptedOne) {
  const TemporaryFolder folder;
  Rehearsal whole(100);
  whole.trainer->train(whole.options);
  ASSERT_EQ(whole.trainer->num_updates(), 12);
  whole.trainer->save_training_state(folder / "whole");
  const std::string expected = read_bytes(folder / "whole" / kTrainingStateFile);
  // Before the average starts, at its start, at an epoch's end, and mid-epoch.
  for (int64_t k : {1, 2, 4, 7}) {
    SCOPED_TRACE(k);
    Rehearsal first(k);
    first.trainer->train(first.options);
    first.trainer->save_training_state(folder / "stopped");
    Rehearsal second(100);
    second.options.resume_from = folder / "stopped";
    EXPECT_EQ(second.trainer->train(second.options).num_updates, 12);
    EXPECT_EQ(second.ema->num_averaged(), whole.ema->num_averaged());
    second.trainer->save_training_state(folder / "resumed");
    EXPECT_EQ(read_bytes(folder / "resumed" / kTrainingStateFile), expected);
  }
}

TEST(ModelEmaStateTest, AFileNewerThanTheStateIsNotMistakenForItsBestAverage) {
  const TemporaryFolder folder;
  const ModelEmaOptions every_epoch{.evaluate = false, .path = folder / "ema.pt"};
  Rehearsal whole(1000, every_epoch);
  // Each epoch has 4 updates. The state of update 5, in the second epoch, refers to the first
  // epoch's file.
  whole.trainer->callback_handler().add(
      make<LambdaCallback>({.on_train_update_end = [&](Trainer& trainer) {
        if (trainer.num_updates() == 5) trainer.save_training_state(folder / "state");
      }}));
  whole.trainer->train(whole.options);
  Rehearsal resumed(1000, every_epoch);
  resumed.options.resume_from = folder / "state";
  resumed.trainer->train(resumed.options);
  const std::string warning = "WARNING: the best average so far is ignored: ";
  EXPECT_TRUE(std::any_of(
      resumed.trainer->lines.begin(), resumed.trainer->lines.end(), [&](const std::string& line) {
        return line.starts_with(warning) && line.find("replaced") != std::string::npos;
      }));
  EXPECT_EQ(read_checkpoint(folder / "ema.pt").get_int("epoch"), 3);
}

TEST(ModelEmaStateTest, AStateWithoutTheEpochOfItsFileForgetsTheBestValue) {
  const TemporaryFolder folder;
  const ModelEmaOptions every_epoch{.evaluate = true, .path = folder / "ema.pt"};
  Rehearsal first(5, every_epoch);
  first.trainer->train(first.options);
  first.trainer->save_training_state(folder / "state");
  const auto path = folder / "state" / kTrainingStateFile;
  StateDict contents = read_checkpoint(path, {.mmap = false});
  StateDict state = contents.get_dict("training_state");
  StateDict callbacks = state.get_dict("callbacks");
  StateDict ema = callbacks.get_dict(first.ema->name());
  ema.erase("saved_epoch");
  ema.set("best", -1e9);  // no later average is better
  callbacks.set(first.ema->name(), ema);
  state.set("callbacks", callbacks);
  contents.set("training_state", state);
  write_checkpoint(path, contents);

  Rehearsal resumed(1000, every_epoch);
  resumed.options.resume_from = folder / "state";
  resumed.trainer->train(resumed.options);
  EXPECT_TRUE(std::any_of(
      resumed.trainer->lines.begin(), resumed.trainer->lines.end(), [](const std::string& line) {
        return line.starts_with("WARNING: the best average so far is ignored: ");
      }));
  EXPECT_GT(read_checkpoint(folder / "ema.pt").get_int("epoch"), 1);
}

TEST(ModelEmaStateTest, AStateWithTheAverageInTheModelContinuesWithTheWeights) {
  const TemporaryFolder folder;
  Rehearsal whole(100);
  whole.options.create_scheduler_fn = {};
  whole.options.num_epochs = 5;
  whole.trainer->train(whole.options);

  Rehearsal first(100, {.apply_at_end = true});
  first.options.create_scheduler_fn = {};
  first.trainer->callback_handler().add(make<SaveTrainingState>({.directory = folder.path()}));
  first.trainer->train(first.options);
  Rehearsal second(100, {.apply_at_end = false});
  second.options.create_scheduler_fn = {};
  second.options.num_epochs = 5;
  second.options.resume_from = folder.path();
  second.trainer->train(second.options);
  EXPECT_EQ(second.trainer->num_updates(), 20);
  EXPECT_TRUE(bit_equal(second.model->parameters(), whole.model->parameters()));
  EXPECT_TRUE(bit_equal(tensors_of(second.ema->averaged_model_state()),
                        tensors_of(whole.ema->averaged_model_state())));
}

TEST(ModelEmaStateTest, ALoadedAverageCanBeSwappedInBeforeARun) {
  const TemporaryFolder folder;
  Rehearsal first(100);
  first.trainer->train(first.options);
  first.trainer->save_training_state(folder / "state");
  Rehearsal second(100);
  second.options.create_scheduler_fn = {};
  first.trainer->save_checkpoint(folder / "model.pt", {}, {.optimizer = false, .scheduler = false});
  second.trainer->load_checkpoint(folder / "model.pt");
  second.ema->load_state_dict(first.ema->state_dict());
  second.ema->swap_in(*second.trainer);
  EXPECT_TRUE(bit_equal(second.model->parameters(), [&] {
    first.ema->swap_in(*first.trainer);
    return first.model->parameters();
  }()));
}

}  // namespace
}  // namespace linkboy::testing::model_ema_state_test
