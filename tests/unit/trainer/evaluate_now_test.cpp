// Evaluations during training.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/extend/limited_loader.hpp"
#include "support/expect_error.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::evaluate_now_test {
namespace {

TEST(EvaluateNowTest, DoesNotChangeTheTraining) {
  const SingleThread one_thread;
  const auto weights_after = [](bool evaluates) {
    Toy toy({make<LambdaCallback>({.on_train_update_end = [&](Trainer& trainer) {
      if (!evaluates) return;
      trainer.evaluate_now({.metric_prefix = "intermediate_", .loss_name = "eval_loss"});
      EXPECT_TRUE(trainer.model().is_training());
    }})});
    toy.train({.train_dataset = toy_data(12), .num_epochs = 2, .eval_dataset = toy_data(6)});
    EXPECT_EQ(toy.values("intermediate_eval_loss").size(), evaluates ? 4U : 0U);
    EXPECT_EQ(toy.values("train_loss_epoch").size(), 2U);
    return copies_of(toy.model->parameters());
  };
  EXPECT_TRUE(bit_equal(weights_after(true), weights_after(false)));
}

TEST(EvaluateNowTest, DoesNotChangeTheEnclosingEvaluation) {
  std::vector<std::string> names;
  Toy toy({make<LambdaCallback>(
      {.on_eval_step_end = [&](Trainer& trainer, const Batch&, const StepOutput&) {
        names.push_back(trainer.metric_name("accuracy"));
        if (trainer.is_intermediate_evaluation()) return;
        trainer.evaluate_now({.metric_prefix = "again_"});
        EXPECT_FALSE(trainer.is_intermediate_evaluation());
      }})});
  toy.train({.more_eval_datasets = {{"small", toy_data(3)}}});
  EXPECT_EQ(names, (std::vector<std::string>{"small_eval_accuracy", "again_small_eval_accuracy"}));
  EXPECT_EQ(toy.values("small_eval_loss_epoch"), toy.values("again_small_eval_loss_epoch"));
}

TEST(EvaluateNowTest, UsesTheLoaderOfIntermediateEvaluations) {
  std::vector<int> steps;
  Toy toy({make<LambdaCallback>({
      .on_dataloaders_ready =
          [](Trainer& trainer) {
            auto& set = trainer.evaluation_sets().front();
            set.intermediate_loader = std::make_shared<LimitedLoader>(set.loader, 1);
          },
      .on_train_update_end =
          [&](Trainer& trainer) {
            for (const bool is_intermediate : {true, false}) {
              steps.push_back(0);
              trainer.evaluate_now(
                  {.metric_prefix = "x_", .uses_intermediate_loader = is_intermediate});
            }
          },
      .on_eval_step_start = [&](Trainer&) { ++steps.back(); },
  })});
  toy.train(
      {.train_dataset = toy_data(2), .eval_dataset = toy_data(6), .per_device_batch_size = 2});
  EXPECT_EQ(steps, (std::vector<int>{1, 3 + 3})) << "the latter with the evaluation of the epoch";
}

TEST(EvaluateNowTest, RequiresEvaluationData) {
  Toy toy({make<LambdaCallback>(
      {.on_train_update_end = [](Trainer& trainer) { trainer.evaluate_now({}); }})});
  EXPECT_ERROR(toy.train(), "no evaluation data");
}

}  // namespace
}  // namespace linkboy::testing::evaluate_now_test
