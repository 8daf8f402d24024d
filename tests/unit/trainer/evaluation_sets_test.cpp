// Evaluations of several sets, before training and in the middle of it, and losses beside the main
// one.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>

#include "linkboy/extend/limited_loader.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::evaluation_sets_test {
namespace {

/// Calls functions at events.
class Calls : public Callback {
 public:
  using Function = std::function<void(Trainer&)>;

  void on_dataloaders_ready(Trainer& trainer) override { call(at_loaders, trainer); }
  void on_train_update_end(Trainer& trainer) override { call(at_update_end, trainer); }
  void on_gradients_ready(Trainer& trainer) override { call(at_gradients, trainer); }
  void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
    call(at_eval_step_end, trainer);
  }
  void on_eval_epoch_end(Trainer& trainer) override { call(at_eval_epoch_end, trainer); }

  Function at_loaders, at_update_end, at_gradients, at_eval_step_end, at_eval_epoch_end;

 private:
  static void call(const Function& function, Trainer& trainer) {
    if (function) function(trainer);
  }
};

/// The toy with a second loss: the mean of the outputs' squares.
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
    return output;
  }
};

TwoLosses two_losses(const torch::nn::Sequential& model, CallbackList callbacks = {}) {
  return TwoLosses(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                   {.callbacks = std::move(callbacks), .accelerator = {.device = "cpu"}});
}

TEST(EvaluationSetsTest, EachSetHasMetricsOfItsOwnAfterEveryEpoch) {
  Toy toy;
  toy.trainer.train({.train_dataset = toy_data(8),
                     .num_epochs = 2,
                     .eval_dataset = toy_data(6),
                     .more_eval_datasets = {{"rare", toy_data(5)}, {"clean", toy_data(6)}}});
  const auto& history = toy.trainer.run_history();
  EXPECT_EQ(history.get_metric_names(),
            (std::vector<std::string>{"train_loss_epoch", "eval_loss_epoch", "rare_eval_loss_epoch",
                                      "clean_eval_loss_epoch"}));
  EXPECT_EQ(history.get_metric_values("clean_eval_loss_epoch"),
            history.get_metric_values("eval_loss_epoch"));
  EXPECT_NE(history.get_metric_values("rare_eval_loss_epoch"),
            history.get_metric_values("eval_loss_epoch"));
}

TEST(EvaluationSetsTest, SetsWithNamesNeedNoSetWithout) {
  Toy toy;
  toy.trainer.train({.train_dataset = toy_data(8),
                     .num_epochs = 1,
                     .more_eval_datasets = {{"only", toy_data(6)}}});
  EXPECT_EQ(toy.trainer.run_history().get_metric_values("only_eval_loss_epoch").size(), 1U);
}

TEST(EvaluationSetsTest, RefusesSetsWithoutAName) {
  Toy toy;
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(8),
                                  .num_epochs = 1,
                                  .more_eval_datasets = {{"", toy_data(6)}}}),
               "has no name");
}

TEST(EvaluationSetsTest, RefusesTwoSetsOfOneName) {
  Toy toy;
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(8),
                                  .num_epochs = 1,
                                  .more_eval_datasets = {{"a", toy_data(6)}, {"a", toy_data(6)}}}),
               "two of more_eval_datasets are called \"a\"");
}

TEST(EvaluationSetsTest, RefusesASetWithoutData) {
  Toy toy;
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(8),
                                  .num_epochs = 1,
                                  .more_eval_datasets = {{"a", Dataset()}}}),
               "the evaluation data \"a\" is an empty handle");
}

TEST(EvaluationSetsTest, EvaluatesBeforeTrainingWhenAskedTo) {
  Toy toy;
  const auto before = toy.trainer.evaluate({.dataset = toy_data(6)}).at("evaluation_loss");
  toy.trainer.train({.train_dataset = toy_data(8),
                     .num_epochs = 1,
                     .eval_dataset = toy_data(6),
                     .evaluate_before_training = true});
  const auto& history = toy.trainer.run_history();
  EXPECT_EQ(history.get_metric_values("initial_eval_loss_epoch"), std::vector<double>{before});
  EXPECT_EQ(history.get_metric_values("eval_loss_epoch").size(), 1U);
}

TEST(EvaluationSetsTest, AResumedRunDoesNotEvaluateBeforeTrainingAgain) {
  const TemporaryFolder folder;
  const auto train = [&](int64_t num_epochs, std::optional<std::filesystem::path> resume_from) {
    Toy toy;
    toy.trainer.train({.train_dataset = toy_data(8),
                       .num_epochs = num_epochs,
                       .eval_dataset = toy_data(6),
                       .resume_from = std::move(resume_from),
                       .evaluate_before_training = true});
    toy.trainer.save_training_state(folder.path());
    return toy.trainer.run_history().get_metric_values("initial_eval_loss_epoch").size();
  };
  EXPECT_EQ(train(1, std::nullopt), 1U);
  EXPECT_EQ(train(2, folder.path()), 1U);
}

TEST(EvaluateNowTest, LeavesTheTrainingAsItWas) {
  const SingleThread one_thread;
  const auto weights_after = [](bool evaluates) {
    auto calls = std::make_shared<Calls>();
    if (evaluates) {
      calls->at_update_end = [](Trainer& trainer) {
        trainer.evaluate_now({.metric_prefix = "intermediate_", .loss_name = "eval_loss"});
        EXPECT_TRUE(trainer.model().is_training());
      };
    }
    Toy toy({calls});
    toy.trainer.train(
        {.train_dataset = toy_data(12), .num_epochs = 2, .eval_dataset = toy_data(6)});
    EXPECT_EQ(toy.trainer.run_history().get_metric_values("intermediate_eval_loss").size(),
              evaluates ? 4U : 0U);
    EXPECT_EQ(toy.trainer.run_history().get_metric_values("train_loss_epoch").size(), 2U);
    return copies_of(toy.model->parameters());
  };
  EXPECT_TRUE(bit_equal(weights_after(true), weights_after(false)));
}

TEST(EvaluateNowTest, WithinAnEvaluationItLeavesThatOneAsItWas) {
  auto calls = std::make_shared<Calls>();
  std::vector<std::string> names;
  calls->at_eval_step_end = [&](Trainer& trainer) {
    names.push_back(trainer.metric_name("accuracy"));
    if (trainer.is_intermediate_evaluation()) return;
    trainer.evaluate_now({.metric_prefix = "again_"});
    EXPECT_FALSE(trainer.is_intermediate_evaluation());
  };
  Toy toy({calls});
  toy.trainer.train({.train_dataset = toy_data(4),
                     .num_epochs = 1,
                     .more_eval_datasets = {{"small", toy_data(3)}}});
  const auto& history = toy.trainer.run_history();
  EXPECT_EQ(names, (std::vector<std::string>{"small_eval_accuracy", "again_small_eval_accuracy"}));
  EXPECT_EQ(history.get_latest_metric("small_eval_loss_epoch"),
            history.get_latest_metric("again_small_eval_loss_epoch"));
}

TEST(EvaluateNowTest, OneInBetweenTakesTheLoaderForIt) {
  auto calls = std::make_shared<Calls>();
  int num_steps = 0;
  calls->at_loaders = [](Trainer& trainer) {
    auto& set = trainer.evaluation_sets().front();
    set.intermediate_loader = std::make_shared<LimitedLoader>(set.loader, 1);
  };
  calls->at_eval_step_end = [&](Trainer&) { ++num_steps; };
  std::vector<int> steps;
  calls->at_update_end = [&](Trainer& trainer) {
    for (const bool uses_intermediate_loader : {true, false}) {
      num_steps = 0;
      trainer.evaluate_now(
          {.metric_prefix = "x_", .uses_intermediate_loader = uses_intermediate_loader});
      steps.push_back(num_steps);
    }
  };
  Toy toy({calls});
  toy.trainer.train({.train_dataset = toy_data(2),
                     .num_epochs = 1,
                     .eval_dataset = toy_data(6),
                     .per_device_batch_size = 2});
  EXPECT_EQ(steps, (std::vector<int>{1, 3}));
}

TEST(EvaluateNowTest, RefusesWithoutEvaluationData) {
  auto calls = std::make_shared<Calls>();
  calls->at_update_end = [](Trainer& trainer) { trainer.evaluate_now({}); };
  Toy toy({calls});
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(4), .num_epochs = 1}),
               "no evaluation data");
}

TEST(MetricNameTest, SaysThePhaseAfterThePrefixOfTheHistory) {
  auto calls = std::make_shared<Calls>();
  std::vector<std::string> names;
  calls->at_update_end = [&](Trainer& trainer) { names.push_back(trainer.metric_name("f1")); };
  calls->at_eval_epoch_end = calls->at_update_end;
  Toy toy({calls});
  toy.trainer.run_history().set_metric_name_prefix("fold3_");
  toy.trainer.train({.train_dataset = toy_data(4), .num_epochs = 1, .eval_dataset = toy_data(3)});
  EXPECT_EQ(names, (std::vector<std::string>{"fold3_train_f1", "fold3_eval_f1"}));
}

TEST(GradientsReadyTest, ComesOncePerUpdateWithTheWholeGradientBeforeClipping) {
  auto calls = std::make_shared<Calls>();
  std::vector<double> norms;
  calls->at_gradients = [&](Trainer& trainer) {
    double sum = 0.0;
    for (const auto& parameter : trainer.model().parameters()) {
      sum += parameter.grad().square().sum().item<double>();
    }
    norms.push_back(std::sqrt(sum));
  };
  calls->at_update_end = [&](Trainer& trainer) {
    EXPECT_NEAR(norms.back(), trainer.gradient_norm().item<double>(), 1e-6);
  };
  Toy toy({calls});
  toy.trainer.train({.train_dataset = toy_data(20),
                     .num_epochs = 1,
                     .per_device_batch_size = 4,
                     .gradient_accumulation_steps = 2,
                     .gradient_clip_norm = 0.01});
  EXPECT_EQ(norms.size(), 3U);
}

TEST(TrackLossTest, RecordsTheExactMeanBesideTheMainLoss) {
  auto model = toy_model();
  auto trainer = two_losses(model);
  trainer.track_loss("size_loss");
  trainer.train({.train_dataset = toy_data(10), .num_epochs = 1, .per_device_batch_size = 4});
  EXPECT_NEAR(trainer.run_history().get_latest_metric("train_size_loss_epoch"),
              trainer.weighted_sum / 10.0, 1e-7);
}

TEST(TrackLossTest, IsRecordedInEvaluationsUnderTheNameOfTheirLoss) {
  auto model = toy_model();
  auto trainer = two_losses(model);
  trainer.track_loss("size_loss");
  trainer.train({.train_dataset = toy_data(8), .num_epochs = 1, .eval_dataset = toy_data(6)});
  EXPECT_EQ(trainer.run_history().get_metric_values("eval_size_loss_epoch").size(), 1U);
  EXPECT_EQ(trainer.evaluate({.dataset = toy_data(6)}).count("evaluation_size_loss"), 1U);
}

TEST(TrackLossTest, AnEvaluationWithoutItRecordsNothing) {
  auto model = toy_model();
  auto trainer = two_losses(model);
  trainer.evaluates_size = false;
  trainer.track_loss("size_loss");
  trainer.train({.train_dataset = toy_data(8), .num_epochs = 1, .eval_dataset = toy_data(6)});
  EXPECT_TRUE(trainer.run_history().get_metric_values("eval_size_loss_epoch").empty());
}

TEST(TrackLossTest, ATrainingStepWithoutItIsAnErrorThatNamesIt) {
  Toy toy;
  toy.trainer.track_loss("box_loss");
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1}), "box_loss");
}

TEST(TrackLossTest, RefusesNamesThatAreTaken) {
  Toy toy;
  toy.trainer.track_loss("box_loss");
  EXPECT_ERROR(toy.trainer.track_loss("box_loss"), "tracked already");
  EXPECT_ERROR(toy.trainer.track_loss("loss"), "\"loss\"");
  EXPECT_ERROR(toy.trainer.track_loss(""), "must not be empty");
}

TEST(TrackLossTest, RefusesToStartInTheMiddleOfARun) {
  auto calls = std::make_shared<Calls>();
  calls->at_update_end = [](Trainer& trainer) { trainer.track_loss("late"); };
  Toy toy({calls});
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1}),
               "in the middle of a run");
}

TEST(TrackLossTest, AnEpochResumedInItsMiddleHasTheSameMean) {
  const SingleThread one_thread;
  TemporaryFolder folder;
  const TrainOptions options{
      .train_dataset = toy_data(20), .num_epochs = 1, .per_device_batch_size = 4};
  auto model = toy_model();
  auto calls = std::make_shared<Calls>();
  calls->at_update_end = [&](Trainer& trainer) {
    if (trainer.num_updates() == 2) trainer.save_training_state(folder.path() / "state");
  };
  auto whole = two_losses(model, {calls});
  whole.track_loss("size_loss");
  torch::manual_seed(1);
  whole.train(options);

  auto resumed_model = toy_model();
  auto resumed = two_losses(resumed_model, {std::make_shared<Calls>()});
  resumed.track_loss("size_loss");
  auto resuming = options;
  resuming.resume_from = folder.path() / "state";
  resumed.train(resuming);
  EXPECT_EQ(resumed.run_history().get_latest_metric("train_size_loss_epoch"),
            whole.run_history().get_latest_metric("train_size_loss_epoch"));
}

TEST(ReplacedLoaderTest, TheRunHasTheLengthOfTheNewTrainingLoader) {
  auto calls = std::make_shared<Calls>();
  calls->at_loaders = [](Trainer& trainer) {
    trainer.set_train_dataloader(std::make_shared<LimitedLoader>(trainer.train_dataloader(), 2));
    for (auto& set : trainer.evaluation_sets()) {
      set.loader = std::make_shared<LimitedLoader>(set.loader, 1);
    }
  };
  int num_eval_steps = 0;
  calls->at_eval_step_end = [&](Trainer&) { ++num_eval_steps; };
  Toy toy({calls});
  const auto result = toy.trainer.train({.train_dataset = toy_data(20),
                                         .num_epochs = 3,
                                         .eval_dataset = toy_data(20),
                                         .per_device_batch_size = 4});
  EXPECT_EQ(result.num_updates, 6);
  EXPECT_EQ(toy.trainer.run_config().num_updates_per_epoch, 2);
  EXPECT_EQ(num_eval_steps, 3);
}

TEST(ReplacedLoaderTest, RefusesToReplaceItInTheMiddleOfARun) {
  auto calls = std::make_shared<Calls>();
  calls->at_update_end = [](Trainer& trainer) {
    trainer.set_train_dataloader(trainer.train_dataloader());
  };
  Toy toy({calls});
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1}),
               "on_dataloaders_ready");
}

TEST(ReplacedLoaderTest, RefusesNull) {
  auto calls = std::make_shared<Calls>();
  calls->at_loaders = [](Trainer& trainer) { trainer.set_train_dataloader(nullptr); };
  Toy toy({calls});
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1}), "is null");
}

TEST(LimitedLoaderTest, GivesTheFirstBatchesOfEachEpoch) {
  const auto all = make_data_loader(toy_data(20), {.batch_size = 4, .shuffle = true, .seed = 3});
  LimitedLoader limited(all, 2);
  EXPECT_EQ(limited.size(), 2);
  EXPECT_EQ(limited.batch_size(), 4);
  for (const int64_t epoch : {1, 2}) {
    auto expected = all->iterate(epoch);
    auto batches = limited.iterate(epoch);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(torch::equal(batches->next()->input(), expected->next()->input()));
    }
    EXPECT_FALSE(batches->next());
  }
}

TEST(LimitedLoaderTest, GoesOnFromTheMiddle) {
  const auto all = make_data_loader(toy_data(20), {.batch_size = 4});
  LimitedLoader limited(all, 3);
  auto batches = limited.iterate(1, 2);
  EXPECT_TRUE(torch::equal(batches->next()->input(), all->iterate(1, 2)->next()->input()));
  EXPECT_FALSE(batches->next());
}

TEST(LimitedLoaderTest, ALimitAboveTheSizeChangesNothing) {
  const auto all = make_data_loader(toy_data(20), {.batch_size = 4});
  LimitedLoader limited(all, 100);
  EXPECT_EQ(limited.size(), 5);
}

TEST(LimitedLoaderTest, RefusesNullAndLimitsBelowOne) {
  const auto all = make_data_loader(toy_data(20), {.batch_size = 4});
  EXPECT_ERROR((LimitedLoader{nullptr, 1}), "is null");
  EXPECT_ERROR((LimitedLoader{all, -1}), "limited to -1 batches");
  EXPECT_EQ((LimitedLoader{all, 0}.size()), 0);
  EXPECT_EQ((LimitedLoader{all, 0}.iterate(1)->next()), std::nullopt);
}

class Named : public Callback {
 public:
  explicit Named(std::vector<int>& calls, int id) : calls_(calls), id_(id) {}
  void on_train_epoch_start(Trainer&) override { calls_.push_back(id_); }

 private:
  std::vector<int>& calls_;
  int id_;
};
class First : public Named {
  using Named::Named;
};
class Second : public Named {
  using Named::Named;
};

TEST(CallbackOrderTest, AnOrderThatIsSetGoesBeforeTheListsOrder) {
  std::vector<int> calls;
  auto first = std::make_shared<First>(calls, 1);
  auto second = std::make_shared<Second>(calls, 2);
  second->set_phase(Callback::Phase::record);
  Toy toy({first, second});
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(calls, (std::vector<int>{2, 1}));
}

TEST(CallbackOrderTest, EqualOrdersKeepTheListsOrder) {
  std::vector<int> calls;
  Toy toy({std::make_shared<Second>(calls, 2), std::make_shared<First>(calls, 1)});
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(calls, (std::vector<int>{2, 1}));
}

TEST(CallbackOrderTest, RemoveIfSaysWhomItRemoved) {
  std::vector<int> calls;
  CallbackHandler handler({std::make_shared<First>(calls, 1), std::make_shared<Second>(calls, 2)});
  const auto removed = handler.remove_if(
      [](const Callback& callback) { return dynamic_cast<const First*>(&callback) != nullptr; });
  ASSERT_EQ(removed.size(), 1U);
  EXPECT_NE(removed[0].find("First"), std::string::npos);
  EXPECT_EQ(handler.callbacks().size(), 1U);
}

TEST(CallbackOrderTest, OneThatIsAddedDuringAnEventIsCalledIfItsTurnIsYetToCome) {
  class Third : public First {
   public:
    using First::First;
  };
  class Adds : public Callback {
   public:
    explicit Adds(std::vector<int>& calls) : calls_(calls) {}
    void on_train_epoch_start(Trainer& trainer) override {
      calls_.push_back(0);
      auto earlier = std::make_shared<First>(calls_, 1);
      earlier->set_phase(Callback::Phase::record);
      trainer.callback_handler().add(earlier);
      auto later = std::make_shared<Third>(calls_, 3);
      later->set_phase(Callback::Phase::evaluate);
      trainer.callback_handler().add(later);
    }

   private:
    std::vector<int>& calls_;
  };
  std::vector<int> calls;
  Toy toy({std::make_shared<Adds>(calls), std::make_shared<Second>(calls, 2)});
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(calls, (std::vector<int>{0, 2, 3}));
}

TEST(CallbackOrderTest, OneThatRemovesAllLivesUntilItReturns) {
  class Clears : public Callback {
   public:
    explicit Clears(std::vector<int>& calls) : calls_(calls), own_(1000, 7) {}
    void on_train_epoch_start(Trainer& trainer) override {
      trainer.callback_handler().clear();
      calls_.push_back(own_.back());
    }

   private:
    std::vector<int>& calls_;
    std::vector<int> own_;
  };
  std::vector<int> calls;
  Toy toy({std::make_shared<Clears>(calls), std::make_shared<Second>(calls, 2)});
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(calls, (std::vector<int>{7}));
}

TEST(CallbackOrderTest, OneThatRemovesThoseBeforeItAndItselfLeavesNoneOut) {
  class Third : public Named {
    using Named::Named;
  };
  class RemovesTwo : public Callback {
   public:
    void on_train_epoch_start(Trainer& trainer) override {
      trainer.callback_handler().remove_if([this](const Callback& callback) {
        return &callback == this || dynamic_cast<const First*>(&callback) != nullptr;
      });
    }
  };
  std::vector<int> calls;
  Toy toy({std::make_shared<First>(calls, 1), std::make_shared<RemovesTwo>(),
           std::make_shared<Second>(calls, 2), std::make_shared<Third>(calls, 3)});
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(calls, (std::vector<int>{1, 2, 3}));
}

TEST(CallbackOrderTest, OneThatPutsAnEarlierOneInItsPlaceGoesOnBehindIt) {
  class Replaces : public Callback {
   public:
    explicit Replaces(std::vector<int>& calls) : calls_(calls) {}
    void on_train_epoch_start(Trainer& trainer) override {
      auto earlier = std::make_shared<First>(calls_, 1);
      earlier->set_phase(Callback::Phase::record);
      trainer.callback_handler().remove_if(
          [this](const Callback& callback) { return &callback == this; });
      trainer.callback_handler().add(earlier);
    }

   private:
    std::vector<int>& calls_;
  };
  std::vector<int> calls;
  Toy toy({std::make_shared<Replaces>(calls), std::make_shared<Second>(calls, 2)});
  toy.trainer.train({.train_dataset = toy_data(8), .num_epochs = 1});
  EXPECT_EQ(calls, (std::vector<int>{2}));
}

TEST(LowOverheadTest, OnlyMovesModules) {
  const CallbackHandler handler(low_overhead_callbacks());
  ASSERT_EQ(handler.names().size(), 1U);
  EXPECT_NE(handler.names()[0].find("MoveModulesToDevice"), std::string::npos);
}

}  // namespace
}  // namespace linkboy::testing::evaluation_sets_test
