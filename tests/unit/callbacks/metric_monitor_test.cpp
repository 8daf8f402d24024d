// What EarlyStopping and SaveBestModel keep of a metric from one run to the next, and at ties.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "linkboy/callbacks/early_stopping.hpp"
#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/save_best_model.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::metric_monitor_test {
namespace {

/// A Trainer whose metric "score" has given values, one an epoch, before `callback` looks at it.
class Scored {
 public:
  explicit Scored(std::shared_ptr<Callback> callback)
      : toy_({make<LambdaCallback>(
                  {.on_training_run_epoch_end =
                       [this](Trainer& trainer) {
                         trainer.run_history().update_metric("score", scores_.at(num_epochs_++));
                         weights.push_back(copies_of(trainer.model().parameters()));
                       }}),
              std::move(callback)}) {}

  /// Returns the number of epochs that the run had.
  int64_t train(std::vector<double> scores) {
    scores_ = std::move(scores);
    num_epochs_ = 0;
    weights.clear();
    return toy_.trainer
        .train({.train_dataset = toy_data(4),
                .num_epochs = static_cast<int64_t>(scores_.size()),
                .per_device_batch_size = 4})
        .num_epochs;
  }
  std::vector<torch::Tensor> parameters() const { return toy_.model->parameters(); }

  /// After each epoch of the last run.
  std::vector<std::vector<torch::Tensor>> weights;

 private:
  std::vector<double> scores_;
  std::size_t num_epochs_ = 0;
  Toy toy_;
};

Scored stopping_early(bool reset_on_train) {
  return Scored(
      make<EarlyStopping>({.patience = 2, .monitor = "score", .reset_on_train = reset_on_train}));
}

TEST(EarlyStoppingTest, NewRunForgetsTheBestValueAndTheCountOfTheRunBefore) {
  Scored scored = stopping_early(true);
  EXPECT_EQ(scored.train({1.0, 1.0}), 2);
  // NaN is no improvement: with the count of the run before it would be the second such epoch.
  EXPECT_EQ(scored.train({NAN, 5.0, 5.0, 5.0, 0.0}), 4);
}

/// Two runs of a callback: the second has its state of the end of the first, and the same history.
template <class C>
int64_t epochs_after_resume(const std::function<std::shared_ptr<C>()>& make_callback,
                            const std::vector<double>& before, const std::vector<double>& after) {
  const TemporaryFolder folder;
  const auto run = [&](const std::vector<double>& scores, int64_t from, auto resume) {
    auto next = std::make_shared<std::size_t>(0);
    Toy toy({make<LambdaCallback>({.on_training_run_epoch_end =
                                       [&scores, next](Trainer& trainer) {
                                         trainer.run_history().update_metric("score",
                                                                             scores.at((*next)++));
                                       }}),
             make_callback(), make<SaveTrainingState>({.directory = folder / "states"})});
    return toy.trainer
        .train({.train_dataset = toy_data(4),
                .num_epochs = from + static_cast<int64_t>(scores.size()),
                .per_device_batch_size = 4,
                .resume_from = resume})
        .num_epochs;
  };
  const auto done = run(before, 0, std::optional<std::filesystem::path>());
  return run(after, done, std::optional<std::filesystem::path>(folder / "states" / "latest")) -
         done;
}

std::shared_ptr<EarlyStopping> patience_of_three() {
  return make<EarlyStopping>({.patience = 3, .monitor = "score"});
}

TEST(EarlyStoppingTest, ARunThatItHasEndedDoesNotTrainWhenResumed) {
  const std::vector<double> worse{1.0, 2.0, 2.0, 2.0};
  EXPECT_EQ(epochs_after_resume<EarlyStopping>(patience_of_three, worse, {3.0, 3.0}), 0);
  const auto bounded = [] {
    return make<EarlyStopping>({.divergence_bound = 5.0, .monitor = "score"});
  };
  EXPECT_EQ(epochs_after_resume<EarlyStopping>(bounded, {1.0, 9.0}, {1.0, 1.0}), 0);
}

TEST(EarlyStoppingTest, AResumedRunDoesNotLookAtTheWarmUpEither) {
  const auto bounded = [] {
    return make<EarlyStopping>({.warmup_epochs = 3, .divergence_bound = 5.0, .monitor = "score"});
  };
  EXPECT_EQ(epochs_after_resume<EarlyStopping>(bounded, {9.0}, {9.0, 9.0, 1.0}), 3);
}

/// The second run is to resume, but fails at its start; the third one resumes nothing.
TEST(EarlyStoppingTest, AStateThatWasLoadedForAnotherRunIsForgotten) {
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
  TrainOptions options{.train_dataset = toy_data(4), .num_epochs = 2};
  toy.trainer.train(options);
  toy.trainer.save_training_state(folder.path());
  fails = true;
  options.resume_from = folder.path();
  EXPECT_ERROR(toy.trainer.train(options), "no room");
  fails = false;
  options.resume_from = {};
  options.num_epochs = 9;
  EXPECT_EQ(toy.trainer.train(options).num_epochs, 3);
}

/// An evaluation of the user's own is not the one at the end of an epoch.
TEST(EarlyStoppingTest, AnEvaluationOfAnotherCallbackDoesNotCountAsTheEpochs) {
  Toy toy({make<LambdaCallback>(
               {.on_training_run_epoch_end =
                    [](Trainer& trainer) { trainer.evaluate_now({.metric_prefix = "test_"}); }}),
           std::make_shared<EarlyStopping>()});
  TrainOptions options{.train_dataset = toy_data(4), .num_epochs = 4, .eval_dataset = toy_data(4)};
  options.evaluate_every_n_epochs = 3;
  EXPECT_EQ(toy.trainer.train(options).num_epochs, 4);
}

TEST(EarlyStoppingTest, ALargerPatienceLetsAStoppedRunContinue) {
  int64_t patience = 1;
  const std::function<std::shared_ptr<EarlyStopping>()> growing = [&] {
    return make<EarlyStopping>({.patience = patience++, .monitor = "score"});
  };
  EXPECT_EQ(epochs_after_resume<EarlyStopping>(growing, {1.0, 2.0}, {0.5, 0.4}), 2);
}

TEST(EarlyStoppingTest, AResumedRunCountsTheNaNsBeforeIt) {
  EXPECT_EQ(epochs_after_resume<EarlyStopping>(patience_of_three, {NAN, NAN}, {NAN, NAN, NAN, NAN}),
            1);
}

TEST(EarlyStoppingTest, ResetOnTrainFalseKeepsTheBestValueAndTheCount) {
  Scored scored = stopping_early(false);
  EXPECT_EQ(scored.train({1.0, 1.0}), 2);
  EXPECT_EQ(scored.train({2.0, 0.0}), 1);
}

TEST(EarlyStoppingTest, AResumedRunKeepsTheCountOfValuesThatWereNeverFinite) {
  const TemporaryFolder folder;
  const auto never_finite = [] {
    return make<LambdaCallback>({.on_training_run_epoch_end = [](Trainer& trainer) {
      trainer.run_history().update_metric("score", NAN);
    }});
  };
  const EarlyStoppingOptions stopping{.patience = 3, .monitor = "score"};
  TrainOptions options{.train_dataset = toy_data(4), .num_epochs = 2};
  Toy first({never_finite(), std::make_shared<EarlyStopping>(stopping)});
  first.trainer.train(options);
  first.trainer.save_training_state(folder.path());
  Toy second({never_finite(), std::make_shared<EarlyStopping>(stopping)});
  options.num_epochs = 9;
  options.resume_from = folder.path();
  EXPECT_EQ(second.trainer.train(options).num_epochs, 3);
}

TEST(MetricMonitorTest, AResumedRunReadsTheValueThatWasNotReadBefore) {
  Toy toy;
  auto& history = toy.trainer.run_history();
  MetricMonitor saved("score", true);
  saved.start_run(toy.trainer, /*is_resumed=*/false, /*reset=*/true);
  history.update_metric("score", 1.0);
  EXPECT_EQ(saved.new_value(toy.trainer), 1.0);
  history.update_metric("score", 2.0);  // within the next epoch
  const StateDict state = saved.state_dict();
  MetricMonitor resumed("score", true);
  resumed.load_state_dict(state);
  EXPECT_FALSE(resumed.start_run(toy.trainer, /*is_resumed=*/true, /*reset=*/true));
  EXPECT_EQ(resumed.new_value(toy.trainer), 2.0);
  EXPECT_TRUE(resumed.start_run(toy.trainer, /*is_resumed=*/false, /*reset=*/true));
  EXPECT_EQ(resumed.new_value(toy.trainer), std::nullopt);
}

class SaveBestModelTwiceTest : public ::testing::Test {
 protected:
  Scored saving(SaveBestModelOptions options) {
    options.path = folder_ / "best.pt";
    options.monitor = "score";
    save_ = std::make_shared<SaveBestModel>(options);
    return Scored(save_);
  }
  TemporaryFolder folder_;
  std::shared_ptr<SaveBestModel> save_;
};

TEST_F(SaveBestModelTwiceTest, NewRunSavesItsOwnBestThoughTheRunBeforeWasBetter) {
  Scored scored = saving({});
  scored.train({1.0});
  scored.train({4.0, 3.0, 5.0});
  EXPECT_TRUE(bit_equal(scored.parameters(), scored.weights[1]));
  EXPECT_EQ(save_->saved().front().value, 3.0);
}

TEST_F(SaveBestModelTwiceTest, ResetOnTrainFalseLoadsTheBestOfAllRuns) {
  Scored scored = saving({.reset_on_train = false});
  scored.train({1.0});
  const auto best = scored.weights[0];
  scored.train({4.0, 3.0});
  EXPECT_TRUE(bit_equal(scored.parameters(), best));
}

TEST_F(SaveBestModelTwiceTest, OfEqualValuesTheEarlierEpochIsTheBest) {
  Scored scored = saving({.save_top_k = 3});
  scored.train({2.0, 1.0, 1.0, 1.0});
  std::vector<int64_t> epochs;
  for (const auto& saved : save_->saved()) epochs.push_back(saved.epoch);
  EXPECT_EQ(epochs, (std::vector<int64_t>{2, 3, 4}));
  EXPECT_TRUE(bit_equal(scored.parameters(), scored.weights[1]));
}

}  // namespace
}  // namespace linkboy::testing::metric_monitor_test
