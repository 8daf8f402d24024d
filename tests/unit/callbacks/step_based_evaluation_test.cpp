#include "linkboy/callbacks/step_based_evaluation.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "support/cpu_trainer.hpp"
#include "support/expect_error.hpp"
#include "support/keep_losses.hpp"
#include "support/matchers.hpp"
#include "support/run_with_all_state.hpp"
#include "support/saved_states.hpp"
#include "support/skipping_trainer.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::step_based_evaluation_test {
namespace {

TrainOptions epochs(int64_t num_epochs) {
  return {.train_dataset = toy_data(10),
          .eval_dataset = toy_data(6),
          .per_device_batch_size = 2,
          .num_epochs = num_epochs};
}

/// A model that behaves differently in its two modes and draws random numbers in training.
struct Dropping {
  explicit Dropping(CallbackList callbacks = {})
      : trainer(cpu_trainer(model, std::move(callbacks))) {
    trainer.callback_handler().add(losses);
  }

  torch::nn::Sequential model = model_with_dropout();
  std::shared_ptr<KeepLosses> losses = std::make_shared<KeepLosses>();
  QuietTrainer trainer;
};

std::shared_ptr<StepBasedEvaluation> every(int64_t num_updates) {
  return make<StepBasedEvaluation>({.every_n_updates = num_updates});
}

TEST(StepBasedEvaluationTest, EvaluatesEveryNUpdatesOfTheRun) {
  std::vector<int64_t> updates;
  const auto keep_updates = make<LambdaCallback>({.on_eval_epoch_start = [&](Trainer& trainer) {
    if (trainer.run().is_intermediate_evaluation()) updates.push_back(trainer.num_updates());
  }});
  Toy toy({keep_updates, every(3)});
  TrainOptions options = epochs(3);
  options.gradient_accumulation_steps = 2;
  toy.trainer.train(options);  // 3 updates per epoch
  EXPECT_THAT(updates, ElementsAre(3, 6, 9));
  EXPECT_EQ(toy.values("intermediate_eval_loss").size(), 3U);
  // At the last update of an epoch, both evaluations use the same weights.
  EXPECT_EQ(toy.values("intermediate_eval_loss"), toy.values("eval_loss_epoch"));
}

TEST(StepBasedEvaluationTest, ContinuesInTrainingModeWithTheSameLosses) {
  Dropping plain;
  plain.trainer.train(epochs(2));
  const auto expect_training = make<LambdaCallback>({.on_train_step_start = [](Trainer& trainer) {
    EXPECT_TRUE(trainer.model().is_training());
  }});
  Dropping watched({every(1), expect_training});
  watched.trainer.train(epochs(2));
  EXPECT_EQ(watched.losses->losses, plain.losses->losses);
  EXPECT_TRUE(bit_equal(watched.model->parameters(), plain.model->parameters()));
  EXPECT_TRUE(bit_equal(watched.model->buffers(), plain.model->buffers()));
  for (const char* metric : {"train_loss_epoch", "eval_loss_epoch"}) {
    EXPECT_EQ(watched.trainer.run_history().get_metric_values(metric),
              plain.trainer.run_history().get_metric_values(metric));
  }
}

TEST(StepBasedEvaluationTest, ReportsItsEvaluationsAndDoesNothingInEvaluate) {
  Toy toy({every(4)});
  toy.trainer.evaluate({.dataset = toy_data(6)});
  EXPECT_TRUE(toy.trainer.lines.empty());
  toy.trainer.train(epochs(1));
  EXPECT_THAT(toy.trainer.lines,
              ElementsAre("Running evaluation after 4 updates", "Resuming training..."));
}

TEST(StepBasedEvaluationTest, DoesNotCountSkippedUpdates) {
  ToyOf<SkippingTrainer> toy({every(4)});
  toy.trainer.skipped_steps = {5};
  toy.trainer.train(epochs(1));  // 4 updates and a skipped fifth one
  EXPECT_EQ(toy.values("intermediate_eval_loss").size(), 1U);
}

TEST(StepBasedEvaluationTest, AStopDuringItSavesThePreviousUpdate) {
  const auto stop_in_evaluation = make<LambdaCallback>({.on_eval_step_start = [](Trainer& trainer) {
    if (trainer.num_updates() == 7) trainer.request_stop();
  }});
  const TemporaryFolder folder;
  Dropping whole({every(1)});
  whole.trainer.train(epochs(2));
  Dropping first(
      {stop_in_evaluation, every(1), make<SaveTrainingState>({.directory = folder.path()})});
  EXPECT_EQ(first.trainer.train(epochs(2)).num_updates, 7);
  Dropping second({every(1)});
  second.trainer.train(resumed_from(folder.path(), epochs(2)));
  EXPECT_TRUE(bit_equal(second.model->parameters(), whole.model->parameters()));
}

TEST(StepBasedEvaluationTest, AnEvaluationWithinItDoesNotCountAsItsSets) {
  const auto run = [](bool is_stopped, const std::filesystem::path& from) {
    bool is_nested = false;
    const auto within = make<LambdaCallback>(
        {.on_eval_step_start =
             [&](Trainer& trainer) {
               const bool is_second = trainer.run().evaluation_set_name() == "second";
               if (is_stopped && !is_nested && is_second) trainer.request_stop();
             },
         .on_eval_epoch_end =
             [&](Trainer& trainer) {
               const bool is_first = trainer.run().evaluation_set_name().empty();
               if (is_nested || !is_first || !trainer.run().is_intermediate_evaluation()) return;
               is_nested = true;
               trainer.evaluate_now({.metric_prefix = "again_"});
               is_nested = false;
             }});
    auto toy = std::make_unique<Toy>(CallbackList{within, every(3)});
    TrainOptions options = epochs(1);
    options.more_eval_datasets = {{"second", toy_data(4)}};
    if (!from.empty()) options.resume_from = from;
    toy->trainer.train(options);
    return toy;
  };
  const TemporaryFolder folder;
  run(/*is_stopped=*/true, {})->trainer.save_training_state(folder / "state");
  const auto whole = run(false, {});
  const auto resumed = run(false, folder / "state");
  for (const char* metric : {"intermediate_eval_loss", "intermediate_second_eval_loss"}) {
    EXPECT_EQ(resumed->values(metric), whole->values(metric)) << metric;
    EXPECT_EQ(whole->values(metric).size(), 1U);
  }
}

TEST(StepBasedEvaluationTest, RejectsInvalidIntervalsAndRunsWithoutEvaluationData) {
  Toy toy({every(1)});
  TrainOptions options = epochs(1);
  options.eval_dataset = {};
  EXPECT_ERROR(toy.trainer.train(options), "StepBasedEvaluation has no evaluation data");
  EXPECT_ERROR(StepBasedEvaluation({.every_n_updates = 0}), "every_n_updates is 0");
}

}  // namespace
}  // namespace linkboy::testing::step_based_evaluation_test
