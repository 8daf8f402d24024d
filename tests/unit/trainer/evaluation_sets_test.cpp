// Evaluations of several sets: before training, after epochs, and during training.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/extend/limited_loader.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::evaluation_sets_test {
namespace {

TEST(EvaluationSetsTest, EachSetHasSeparateMetricsAfterEveryEpoch) {
  Toy toy;
  toy.train({.eval_dataset = toy_data(6),
             .more_eval_datasets = {{"rare", toy_data(5)}, {"clean", toy_data(6)}},
             .num_epochs = 2});
  EXPECT_EQ(toy.trainer.run_history().get_metric_names(),
            (std::vector<std::string>{"train_loss_epoch", "eval_loss_epoch", "rare_eval_loss_epoch",
                                      "clean_eval_loss_epoch"}));
  EXPECT_EQ(toy.values("clean_eval_loss_epoch"), toy.values("eval_loss_epoch"));
  EXPECT_NE(toy.values("rare_eval_loss_epoch"), toy.values("eval_loss_epoch"));
}

TEST(EvaluationSetsTest, RefusesSetsWithoutAUniqueNameOrData) {
  Toy toy;
  EXPECT_ERROR(toy.train({.more_eval_datasets = {{"", toy_data(6)}}}), "has no name");
  for (const char* name : {"initial", "intermediate_rare", "ema_model", "swa_model_a"}) {
    EXPECT_OPTION_ERROR(toy.train({.more_eval_datasets = {{name, toy_data(6)}}}),
                        "must not begin with ");
  }
  EXPECT_ERROR(toy.train({.more_eval_datasets = {{"a", toy_data(6)}, {"a", toy_data(6)}}}),
               "two entries of more_eval_datasets are named \"a\"");
  EXPECT_ERROR(toy.train({.more_eval_datasets = {{"a", Dataset()}}}),
               "the evaluation data \"a\" is an empty handle");
}

TEST(EvaluationSetsTest, EvaluatesBeforeTrainingOnRequest) {
  Toy toy;
  const auto before = toy.trainer.evaluate({.dataset = toy_data(6)}).at("evaluation_loss");
  toy.train({.eval_dataset = toy_data(6), .evaluate_before_training = true});
  EXPECT_EQ(toy.values("initial_eval_loss_epoch"), std::vector<double>{before});
  EXPECT_EQ(toy.values("eval_loss_epoch").size(), 1U);
}

TEST(EvaluationSetsTest, AResumedRunDoesNotEvaluateBeforeTrainingAgain) {
  const TemporaryFolder folder;
  const auto train = [&](int64_t num_epochs, std::optional<std::filesystem::path> resume_from) {
    Toy toy;
    toy.train({.eval_dataset = toy_data(6),
               .num_epochs = num_epochs,
               .evaluate_before_training = true,
               .resume_from = std::move(resume_from)});
    toy.trainer.save_training_state(folder.path());
    return toy.values("initial_eval_loss_epoch").size();
  };
  EXPECT_EQ(train(1, std::nullopt), 1U);
  EXPECT_EQ(train(2, folder.path()), 1U);
}

TEST(EvaluateNowTest, DoesNotChangeTheTraining) {
  const SingleThread one_thread;
  const TrainOptions options{
      .train_dataset = toy_data(12), .eval_dataset = toy_data(6), .num_epochs = 2};
  Toy plain, toy;
  plain.train(options);
  toy.on(Event::train_update_end, [](Trainer& trainer) {
    trainer.evaluate_now({.metric_prefix = "intermediate_", .loss_name = "eval_loss"});
    EXPECT_TRUE(trainer.model().is_training());
  });
  toy.train(options);
  EXPECT_EQ(toy.values("intermediate_eval_loss").size(), 4U);
  EXPECT_EQ(toy.values("train_loss_epoch"), plain.values("train_loss_epoch"));
  EXPECT_TRUE(bit_equal(toy.model->parameters(), plain.model->parameters()));
}

TEST(EvaluateNowTest, DoesNotChangeTheEnclosingEvaluation) {
  std::vector<std::string> names;
  Toy toy;
  toy.on(Event::eval_step_end, [&](Trainer& trainer) {
    names.push_back(trainer.run().metric_name("accuracy"));
    if (trainer.run().is_intermediate_evaluation()) return;
    trainer.evaluate_now({.metric_prefix = "again_"});
    EXPECT_FALSE(trainer.run().is_intermediate_evaluation());
  });
  toy.train({.more_eval_datasets = {{"small", toy_data(3)}}});
  EXPECT_EQ(names, (std::vector<std::string>{"small_eval_accuracy", "again_small_eval_accuracy"}));
  EXPECT_EQ(toy.values("small_eval_loss_epoch"), toy.values("again_small_eval_loss_epoch"));
}

TEST(EvaluateNowTest, UsesTheLoaderOfIntermediateEvaluations) {
  std::vector<int> steps;
  Toy toy;
  toy.on(Event::dataloaders_ready, [](Trainer& trainer) {
    auto& set = trainer.evaluation_sets().front();
    set.intermediate_loader = std::make_shared<LimitedLoader>(set.loader, 1);
  });
  toy.on(Event::train_update_end, [&](Trainer& trainer) {
    for (const bool is_intermediate : {true, false}) {
      steps.push_back(0);
      trainer.evaluate_now({.metric_prefix = "x_", .uses_intermediate_loader = is_intermediate});
    }
  });
  toy.on(Event::eval_step_start, [&](Trainer&) { ++steps.back(); });
  toy.train(
      {.train_dataset = toy_data(2), .eval_dataset = toy_data(6), .per_device_batch_size = 2});
  EXPECT_EQ(steps, (std::vector<int>{1, 3 + 3})) << "the latter with the evaluation of the epoch";
}

TEST(EvaluateNowTest, RequiresEvaluationData) {
  Toy toy;
  toy.on(Event::train_update_end, [](Trainer& trainer) { trainer.evaluate_now({}); });
  EXPECT_ERROR(toy.train(), "no evaluation data");
}

TEST(MetricNameTest, ContainsThePhaseAfterThePrefixOfTheHistory) {
  std::vector<std::string> names;
  Toy toy;
  for (const Event event : {Event::train_update_end, Event::eval_epoch_end}) {
    toy.on(event, [&](Trainer& trainer) { names.push_back(trainer.run().metric_name("f1")); });
  }
  toy.trainer.run_history().set_metric_name_prefix("fold3_");
  toy.train({.eval_dataset = toy_data(3)});
  EXPECT_EQ(names, (std::vector<std::string>{"fold3_train_f1", "fold3_eval_f1"}));
}

}  // namespace
}  // namespace linkboy::testing::evaluation_sets_test
