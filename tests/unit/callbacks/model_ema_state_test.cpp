// The state of ModelEma, and runs that are resumed.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/model_ema.hpp"
#include "linkboy/checkpoint/checkpoint.hpp"
#include "linkboy/schedulers/curves.hpp"
#include "support/at_update.hpp"
#include "support/averages.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/file_contents.hpp"
#include "support/load_for_resume.hpp"
#include "support/matchers.hpp"
#include "support/run_with_all_state.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

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

/// A run with ModelEma and all other parts that have a state. Each epoch has 4 updates.
struct EmaRehearsal {
  explicit EmaRehearsal(int64_t last_update = 100, ModelEmaOptions ema_options = {})
      : ema(starting_after_two(std::move(ema_options))),
        trainer(cpu_trainer(model, {ema, stop_at(last_update)},
                            std::make_shared<torch::optim::AdamW>(model->parameters(), 0.01))) {}

  static std::shared_ptr<ModelEma> starting_after_two(ModelEmaOptions ema_options) {
    ema_options.start_after = 2;
    return std::make_shared<ModelEma>(std::move(ema_options));
  }

  /// Trains with a constant learning rate.
  void train_without_schedule(int64_t num_epochs) {
    options.create_scheduler_fn = {};
    options.num_epochs = num_epochs;
    trainer.train(options);
  }

  torch::nn::Sequential model = model_with_dropout();
  std::shared_ptr<ModelEma> ema;
  QuietTrainer trainer;
  TrainOptions options{.train_dataset = toy_data(14),
                       .eval_dataset = toy_data(6),
                       .per_device_batch_size = 2,
                       .num_epochs = 3,
                       .gradient_accumulation_steps = 2,
                       .create_scheduler_fn = cosine()};
};

TEST(ModelEmaStateTest, AResumedRunIsBitIdenticalToTheUninterruptedOne) {
  const TemporaryFolder folder;
  EmaRehearsal whole;
  whole.trainer.train(whole.options);
  ASSERT_EQ(whole.trainer.num_updates(), 12);
  whole.trainer.save_training_state(folder / "whole");
  const std::string expected = read_bytes(folder / "whole" / kTrainingStateFile);
  // Before the average starts, at its start, at an epoch's end, and mid-epoch.
  for (int64_t k : {1, 2, 4, 7}) {
    SCOPED_TRACE(k);
    EmaRehearsal first(k);
    first.trainer.train(first.options);
    first.trainer.save_training_state(folder / "stopped");
    EmaRehearsal second;
    const auto options = resumed_from(folder / "stopped", second.options);
    EXPECT_EQ(second.trainer.train(options).num_updates, 12);
    EXPECT_EQ(second.ema->num_averaged(), whole.ema->num_averaged());
    second.trainer.save_training_state(folder / "resumed");
    EXPECT_EQ(read_bytes(folder / "resumed" / kTrainingStateFile), expected);
  }
}

constexpr const char* kBestIsIgnored = "WARNING: the best average of epoch 1 is ignored: ";

TEST(ModelEmaStateTest, AFileNewerThanTheStateIsNotMistakenForItsBestAverage) {
  const TemporaryFolder folder;
  const ModelEmaOptions every_epoch{.evaluate = false, .path = folder / "ema.pt"};
  EmaRehearsal whole(1000, every_epoch);
  // The state of update 5, in the second epoch, refers to the first epoch's file.
  whole.trainer.callback_handler().add(
      make<LambdaCallback>({.on_train_update_end = [&](Trainer& trainer) {
        if (trainer.num_updates() == 5) trainer.save_training_state(folder / "state");
      }}));
  whole.trainer.train(whole.options);
  EmaRehearsal resumed(1000, every_epoch);
  resumed.trainer.train(resumed_from(folder / "state", resumed.options));
  EXPECT_THAT(resumed.trainer.lines,
              Contains(AllOf(StartsWith(kBestIsIgnored), HasSubstr("replaced"))));
  EXPECT_EQ(read_checkpoint(folder / "ema.pt").get_int("epoch"), 3);
}

TEST(ModelEmaStateTest, ANameOutsideOfTheRunsFolderIsAnError) {
  const TemporaryFolder folder;
  EmaRehearsal first(1000, {.evaluate = false, .path = folder / "ema.pt"});
  first.trainer.train(first.options);
  StateDict state = saved_state_of(*first.ema);
  ASSERT_EQ(state.get_list("files").size(), 1U);
  for (const std::string& name :
       {(folder / "ema.pt").string(), std::string("../ema.pt"), std::string("..")}) {
    c10::impl::GenericList files(c10::AnyType::get());
    files.push_back(StateDict{{"name", name}, {"epoch", 1}});
    state.set("files", files);
    ModelEma loaded;
    EXPECT_ERROR(loaded.load_state_dict(state), "must be a plain name");
  }
}

TEST(ModelEmaStateTest, AStateWithTheAverageInTheModelContinuesWithTheWeights) {
  const TemporaryFolder folder;
  EmaRehearsal whole;
  whole.train_without_schedule(5);

  EmaRehearsal first(100, {.apply_at_end = true});
  first.trainer.callback_handler().add(make<SaveTrainingState>({.directory = folder.path()}));
  first.train_without_schedule(3);
  EmaRehearsal second(100, {.apply_at_end = false});
  second.options.resume_from = folder.path();
  second.train_without_schedule(5);
  EXPECT_EQ(second.trainer.num_updates(), 20);
  EXPECT_TRUE(bit_equal(second.model->parameters(), whole.model->parameters()));
  EXPECT_TRUE(bit_equal(tensors_of(second.ema->averaged_model_state()),
                        tensors_of(whole.ema->averaged_model_state())));
}

TEST(ModelEmaStateTest, ALoadedAverageCanBeSwappedInBeforeARun) {
  const TemporaryFolder folder;
  EmaRehearsal first;
  first.trainer.train(first.options);
  first.trainer.save_checkpoint(folder / "model.pt", {}, {.optimizer = false, .scheduler = false});
  EmaRehearsal second;
  second.trainer.load_checkpoint(folder / "model.pt");
  second.ema->load_state_dict(first.ema->state_dict());
  second.ema->swap_in(second.trainer);
  first.ema->swap_in(first.trainer);
  EXPECT_TRUE(bit_equal(second.model->parameters(), first.model->parameters()));
}

}  // namespace
}  // namespace linkboy::testing::model_ema_state_test
