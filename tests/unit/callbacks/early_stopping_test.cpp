#include "linkboy/callbacks/early_stopping.hpp"

#include <gtest/gtest.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "support/expect_error.hpp"
#include "support/given_scores.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::early_stopping_test {
namespace {

int64_t epochs_until_stop(const std::vector<double>& values, EarlyStoppingOptions options) {
  options.monitor = "score";
  return Scored(std::make_shared<EarlyStopping>(options)).train(values);
}

TEST(EarlyStoppingTest, StopsWhenTheMetricHasNotImprovedForItsPatience) {
  EXPECT_EQ(epochs_until_stop({1.0, 1.0, 0.5}, {}), 2);
  EXPECT_EQ(epochs_until_stop({1.0, 1.1, 1.2, 0.5}, {.patience = 2}), 3);
  EXPECT_EQ(epochs_until_stop({1.0, 0.8, 0.6, 0.4}, {}), 4);
  EXPECT_EQ(epochs_until_stop({0.1, 0.2, 0.3, 0.25, 0.9}, {.greater_is_better = true}), 4);
}

TEST(EarlyStoppingTest, CountsOnlyChangesAboveTheThreshold) {
  // As in pytorch-accelerated: 0.995 does not improve on 1, and 0.99 does (by 0.01000...9).
  EXPECT_EQ(epochs_until_stop({1.0, 0.995, 0.99}, {.patience = 2}), 3);
  EXPECT_EQ(epochs_until_stop({1.0, 0.995, 0.99}, {.patience = 1}), 2);
  EXPECT_EQ(epochs_until_stop({1.0, 0.999, 0.998}, {.min_delta = 0.0}), 3);
}

TEST(EarlyStoppingTest, NaNIsNotAnImprovementAndStopsImmediatelyOnRequest) {
  EXPECT_EQ(epochs_until_stop({NAN, 1.0, 0.5}, {}), 1);
  EXPECT_EQ(epochs_until_stop({1.0, NAN, 0.5}, {}), 2);
  EXPECT_EQ(epochs_until_stop({1.0, NAN, 0.5, 0.2}, {.patience = 2}), 4);
  EXPECT_EQ(epochs_until_stop({1.0, NAN, 0.1}, {.patience = 9, .stop_at_non_finite = true}), 2);
}

TEST(EarlyStoppingTest, ReportsItsReason) {
  Scored scored(make<EarlyStopping>({.monitor = "score"}));
  scored.train({1.0, 1.0});
  EXPECT_EQ(scored.toy.trainer.run().result().reason, StopReason::early_stop);
  EXPECT_EQ(scored.last_line(),
            "Stopping training because score has not improved for 1 evaluation");
}

TEST(EarlyStoppingTest, RejectsAMetricThatIsNeverRecorded) {
  Toy toy({make<EarlyStopping>({.monitor = "acuracy"})});
  EXPECT_ERROR(
      toy.trainer.train(epochs_of_one_update(1)),
      "no value of the metric \"acuracy\" was recorded; recorded metrics: train_loss_epoch. "
      "Set the option `monitor`");
}

TEST(EarlyStoppingTest, RejectsOptionsOutOfRange) {
  EXPECT_ERROR(EarlyStopping({.patience = 0}), "patience is 0");
  EXPECT_ERROR(EarlyStopping({.min_delta = -1.0}), "min_delta is -1");
  EXPECT_ERROR(EarlyStopping({.min_delta = NAN}), "min_delta is nan");
  EXPECT_ERROR(EarlyStopping({.warmup_epochs = -1}), "warmup_epochs is -1");
  EXPECT_ERROR(EarlyStopping({.divergence_bound = NAN}), "divergence_bound is NaN");
}

TEST(EarlyStoppingTest, ARelativeThresholdIsAShareOfTheBestValue) {
  const EarlyStoppingOptions options{.min_delta = 0.1, .is_min_delta_relative = true};
  EXPECT_EQ(epochs_until_stop({200.0, 170.0, 150.0, 140.0, 100.0}, options), 4);
  // 9.5 is less than a tenth of 100, the best value, but more than a tenth of the new value.
  EXPECT_EQ(epochs_until_stop({100.0, 90.5, 50.0}, options), 2);
}

TEST(EarlyStoppingTest, IgnoresTheWarmUpEpochs) {
  EXPECT_EQ(epochs_until_stop({1.0, 9.0, 8.0, 2.0, 1.5, 1.5}, {.warmup_epochs = 3}), 6);
}

TEST(EarlyStoppingTest, StopsImmediatelyBeyondTheDivergenceBound) {
  EarlyStoppingOptions options{.patience = 9, .divergence_bound = 5.0};
  EXPECT_EQ(epochs_until_stop({1.0, 5.0, 5.1, 0.1}, options), 3);
  options.greater_is_better = true;
  options.divergence_bound = 0.1;
  EXPECT_EQ(epochs_until_stop({0.5, 0.1, 0.05, 0.9}, options), 3);
}

Scored stopping_early(bool reset_on_train) {
  return Scored(
      make<EarlyStopping>({.patience = 2, .monitor = "score", .reset_on_train = reset_on_train}));
}

TEST(EarlyStoppingTest, ANewRunForgetsTheBestValueAndTheCountOfThePreviousRun) {
  Scored scored = stopping_early(true);
  EXPECT_EQ(scored.train({1.0, 1.0}), 2);
  // NaN is not an improvement. With the count of the previous run, it would be the second such
  // epoch.
  EXPECT_EQ(scored.train({NAN, 5.0, 5.0, 5.0, 0.0}), 4);
}

/// Makes two runs. The second one resumes from the state at the end of the first, with the same
/// history. Returns its number of epochs.
int64_t epochs_after_resume(EarlyStoppingOptions options, const std::vector<double>& before,
                            const std::vector<double>& after,
                            std::optional<int64_t> patience_after_resume = {}) {
  const TemporaryFolder folder;
  options.monitor = "score";
  const auto run = [&](const std::vector<double>& scores, TrainOptions train_options) {
    Toy toy({std::make_shared<GivenScores>(scores), std::make_shared<EarlyStopping>(options),
             make<SaveTrainingState>({.directory = folder / "states"})});
    return toy.trainer.train(train_options).num_epochs;
  };
  const auto done = run(before, epochs_of_one_update(std::ssize(before)));
  options.patience = patience_after_resume.value_or(options.patience);
  const auto num_epochs = done + std::ssize(after);
  return run(after, resumed_from(folder / "states", epochs_of_one_update(num_epochs))) - done;
}

TEST(EarlyStoppingTest, ARunThatItStoppedDoesNotTrainWhenResumed) {
  EXPECT_EQ(epochs_after_resume({.patience = 3}, {1.0, 2.0, 2.0, 2.0}, {3.0, 3.0}), 0);
  EXPECT_EQ(epochs_after_resume({.divergence_bound = 5.0}, {1.0, 9.0}, {1.0, 1.0}), 0);
}

TEST(EarlyStoppingTest, AResumedRunIgnoresTheWarmUpEpochs) {
  const EarlyStoppingOptions options{.warmup_epochs = 3, .divergence_bound = 5.0};
  EXPECT_EQ(epochs_after_resume(options, {9.0}, {9.0, 9.0, 1.0}), 3);
}

// The second run tries to resume but fails at its start. The third one does not resume.
TEST(EarlyStoppingTest, AStateLoadedForAnotherRunIsForgotten) {
  const TemporaryFolder folder;
  bool fails = false;
  const auto stopping = make<EarlyStopping>({.patience = 2, .monitor = "score"});
  Toy toy({make<LambdaCallback>(
               {.on_training_run_start =
                    [&](Trainer&) {
                      if (fails) throw Error("no room");
                    },
                .on_training_run_epoch_end =
                    [](Trainer& trainer) { trainer.run_history().update_metric("score", 1.0); }}),
           stopping});
  toy.trainer.train(epochs_of_one_update(2));
  toy.trainer.save_training_state(folder.path());
  fails = true;
  EXPECT_ERROR(toy.trainer.train(resumed_from(folder.path(), epochs_of_one_update(2))), "no room");
  fails = false;
  EXPECT_EQ(toy.trainer.train(epochs_of_one_update(9)).num_epochs, 3);
}

TEST(EarlyStoppingTest, IgnoresEpochsWithoutEvaluationAndEvaluationsByOtherCallbacks) {
  Toy toy({make<LambdaCallback>(
               {.on_training_run_epoch_end =
                    [](Trainer& trainer) { trainer.evaluate_now({.metric_prefix = "test_"}); }}),
           std::make_shared<EarlyStopping>()});
  TrainOptions options = epochs_of_one_update(4);
  options.eval_dataset = toy_data(4);
  options.evaluate_every_n_epochs = 3;
  EXPECT_EQ(toy.trainer.train(options).num_epochs, 4);
}

TEST(EarlyStoppingTest, ALargerPatienceLetsAStoppedRunContinue) {
  EXPECT_EQ(epochs_after_resume({.patience = 1}, {1.0, 2.0}, {0.5, 0.4}, 2), 2);
}

TEST(EarlyStoppingTest, RestoresItsCount) {
  EXPECT_EQ(epochs_after_resume({.patience = 2}, {1.0, 1.0}, {1.0, 1.0}), 1);
  EXPECT_EQ(epochs_after_resume({.patience = 3}, {NAN, NAN}, {NAN, NAN, NAN, NAN}), 1);
}

TEST(EarlyStoppingTest, ResetOnTrainFalseKeepsTheBestValueAndTheCount) {
  Scored scored = stopping_early(false);
  EXPECT_EQ(scored.train({1.0, 1.0}), 2);
  EXPECT_EQ(scored.train({2.0, 0.0}), 1);
}

}  // namespace
}  // namespace linkboy::testing::early_stopping_test
