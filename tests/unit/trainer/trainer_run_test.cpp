// A Trainer's run: what it shows, and that none has anything of another one.

#include "linkboy/trainer/run.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/schedulers/curves.hpp"
#include "support/expect_error.hpp"
#include "support/matchers.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::trainer_run_test {
namespace {

std::string description(const linkboy::Run& run) {
  return c10::str(run.config().to_string(), enum_name(run.result().reason), " ",
                  run.result().message, " ", run.num_known_updates(), " ", run.micro_step(), " ",
                  run.is_last_epoch(), run.is_epoch_evaluated(), run.is_epoch_cut_short(), " ",
                  run.train_loss_average().total(), " ", run.eval_loss_average().total(), " ",
                  run.gradient_norm().defined(), " ", run.train_dataloader() != nullptr, " ",
                  run.evaluation_sets().size(), " ", run.resumed_from());
}

TEST(TrainerRunTest, ATrainerThatHasNotRunHasAnEmptyRun) {
  const Toy toy;
  const linkboy::Run& run = toy.trainer.run();
  EXPECT_EQ(run.config().num_epochs, 0);
  EXPECT_EQ(run.num_known_updates(), 0);
  EXPECT_EQ(run.train_dataloader(), nullptr);
  EXPECT_EQ(run.eval_dataloader(), nullptr);
  EXPECT_TRUE(run.evaluation_sets().empty());
  EXPECT_FALSE(run.gradient_norm().defined());
}

TEST(TrainerRunTest, EvaluateAndPredictHaveRunsOfTheirOwnAndTheTrainingRunComesBack) {
  const linkboy::Run* seen = nullptr;
  std::string of_call;
  const auto look = [&](Trainer& trainer) {
    seen = &trainer.run();
    of_call = description(*seen);
  };
  Toy toy({in_event(Event::training_run_end, look), in_event(Event::evaluation_run_end, look),
           in_event(Event::prediction_run_end, look)});
  toy.train({.train_dataset = toy_data(12),
             .eval_dataset = toy_data(6),
             .per_device_batch_size = 4,
             .num_epochs = 2,
             .gradient_clip_norm = 0.5});
  const linkboy::Run& run = toy.trainer.run();
  EXPECT_EQ(seen, &run);
  const std::string of_training = description(run);
  EXPECT_EQ(of_training, of_call);

  for (const char* call : {"evaluate", "predict", "a stopped evaluate", "a failed evaluate"}) {
    SCOPED_TRACE(call);
    const std::string name = call;
    if (name == "a stopped evaluate") toy.trainer.request_stop();
    if (name == "predict") toy.trainer.predict({.dataset = toy_data(5)});
    if (name == "a failed evaluate") {
      EXPECT_ERROR(toy.trainer.evaluate({.dataset = toy_data(0)}), "the evaluation data is empty");
    } else if (name != "predict") {
      toy.trainer.evaluate({.dataset = toy_data(5), .per_device_batch_size = 2});
      EXPECT_THAT(of_call, HasSubstr("num_eval_batches_per_epoch: 3"));
    }
    if (name != "a failed evaluate") {
      EXPECT_NE(seen, &run);
    }
    EXPECT_EQ(&toy.trainer.run(), &run);
    EXPECT_EQ(description(run), of_training);
    EXPECT_EQ(toy.trainer.num_updates(), 6);
  }
  // Its evaluation sets are those of the training run, too.
  EXPECT_EQ(run.evaluation_sets().size(), 1);
  EXPECT_EQ(run.evaluation_sets()[0].loader->size(), 2);
}

TEST(TrainerRunTest, ANewRunHasNothingOfTheRunBefore) {
  const auto run_plain = [](Toy& toy) {
    toy.train({.train_dataset = toy_data(8), .per_device_batch_size = 4, .num_epochs = 1});
  };
  Toy fresh;
  run_plain(fresh);
  Toy toy;
  toy.train({.train_dataset = toy_data(8),
             .eval_dataset = toy_data(4),
             .per_device_batch_size = 2,
             .num_epochs = 2,
             .max_num_updates = 3,
             .gradient_accumulation_steps = 2,
             .gradient_clip_norm = 0.5,
             .create_scheduler_fn = cosine(),
             .evaluate_before_training = true});
  EXPECT_NE(toy.trainer.scheduler(), nullptr);
  run_plain(toy);
  EXPECT_EQ(toy.trainer.scheduler(), nullptr);
  EXPECT_TRUE(toy.values("eval_loss_epoch").empty());
  const linkboy::Run& run = toy.trainer.run();
  EXPECT_EQ(run.config().to_string(), fresh.trainer.run().config().to_string());
  EXPECT_EQ(run.result().reason, StopReason::finished);
  EXPECT_EQ(run.num_known_updates(), 2);
  EXPECT_EQ(run.train_loss_average().count(), 8);
  EXPECT_EQ(run.eval_loss_average().count(), 0);
  EXPECT_FALSE(run.gradient_norm().defined());
  EXPECT_TRUE(run.evaluation_sets().empty());
  EXPECT_EQ(run.eval_dataloader(), nullptr);
  EXPECT_FALSE(run.is_epoch_evaluated());
  EXPECT_FALSE(run.is_epoch_cut_short());
}

/// Adds a metric to each evaluation batch, and may leave the loss out.
class OwnEvalStep : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  int64_t num_right = 0;
  bool calls_outside = false;

 protected:
  void eval_step(const Batch& batch) override {
    fire<Event::eval_step_start>();
    const StepOutput output = eval_forward(batch);
    num_right += output.model_outputs.toTensor().argmax(1).eq(batch.target()).sum().item<int64_t>();
    fire<Event::eval_step_end>(batch, output);
  }
  void eval_epoch_end() override {
    run_history().update_metric("num_right", static_cast<double>(num_right));
  }
  void eval_epoch_start() override {
    if (calls_outside) eval_forward(Batch({{"input", toy_inputs(2)}}));
    QuietTrainer::eval_epoch_start();
  }
};

TEST(TrainerRunTest, AnOverrideOfEvalStepSeesEveryBatchAndTheLossStaysTheSame) {
  Toy plain;
  ToyOf<OwnEvalStep> toy;
  const EvaluateOptions options{.dataset = toy_data(7), .per_device_batch_size = 3};
  const Metrics metrics = toy.trainer.evaluate(options);
  EXPECT_EQ(metrics.at("evaluation_loss"), plain.trainer.evaluate(options).at("evaluation_loss"));
  const auto outputs = toy.trainer.predict({.dataset = toy_data(7)}).toTensor();
  const auto labels = torch::arange(7) * 7 % 3;
  EXPECT_EQ(metrics.at("num_right"), outputs.argmax(1).eq(labels).sum().item<double>());
}

/// Evaluates data of its own after each epoch.
class OwnEvaluation : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

 protected:
  void training_run_epoch_end() override {
    const auto loader = make_data_loader(toy_data(4), {.batch_size = 2});
    run_eval_epoch(*accelerator().prepare(loader), "own_loss");
  }
};

TEST(TrainerRunTest, ASubclassCanRunAnEvaluationEpochOnDataOfItsOwn) {
  ToyOf<OwnEvaluation> toy;
  toy.train();
  ASSERT_EQ(toy.values("own_loss").size(), 1U);
  EXPECT_EQ(toy.values("own_loss").back(),
            toy.trainer.evaluate({.dataset = toy_data(4), .per_device_batch_size = 2})
                .at("evaluation_loss"));
}

TEST(TrainerRunTest, EvaluateNowAfterARunEvaluatesItsSetsAgain) {
  Toy toy;
  toy.train({.eval_dataset = toy_data(4)});
  toy.trainer.evaluate_now({.metric_prefix = "again_"});
  EXPECT_EQ(toy.values("again_eval_loss_epoch"), toy.values("eval_loss_epoch"));
}

TEST(TrainerRunTest, EvalForwardOutsideOfEvalStepIsAnError) {
  ToyOf<OwnEvalStep> toy;
  toy.trainer.calls_outside = true;
  EXPECT_ERROR(toy.trainer.evaluate({.dataset = toy_data(4)}),
               "eval_forward was called outside of eval_step");
}

}  // namespace
}  // namespace linkboy::testing::trainer_run_test
