// Evaluations during training.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/extend/limited_loader.hpp"
#include "support/calls.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::evaluate_now_test {
namespace {

TEST(EvaluateNowTest, DoesNotChangeTheTraining) {
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

TEST(EvaluateNowTest, DoesNotChangeTheEnclosingEvaluation) {
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

TEST(EvaluateNowTest, UsesTheLoaderOfIntermediateEvaluations) {
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

TEST(EvaluateNowTest, RequiresEvaluationData) {
  auto calls = std::make_shared<Calls>();
  calls->at_update_end = [](Trainer& trainer) { trainer.evaluate_now({}); };
  Toy toy({calls});
  EXPECT_ERROR(toy.trainer.train({.train_dataset = toy_data(4), .num_epochs = 1}),
               "no evaluation data");
}

}  // namespace
}  // namespace linkboy::testing::evaluate_now_test
