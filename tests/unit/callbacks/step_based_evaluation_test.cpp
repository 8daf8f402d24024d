#include "linkboy/callbacks/step_based_evaluation.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/trainer.hpp"
#include "support/expect_error.hpp"
#include "support/keep_losses.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::step_based_evaluation_test {
namespace {

TrainOptions epochs(int64_t num_epochs) {
  return {.train_dataset = toy_data(10),
          .num_epochs = num_epochs,
          .eval_dataset = toy_data(6),
          .per_device_batch_size = 2};
}

/// A model that behaves differently in its two modes and draws random numbers in training.
struct Dropping {
  explicit Dropping(CallbackList more = {}) {
    torch::manual_seed(3);
    namespace nn = torch::nn;
    model =
        nn::Sequential(nn::Linear(4, 8), nn::BatchNorm1d(8), nn::Dropout(0.5), nn::Linear(8, 3));
    more.push_back(losses);
    trainer = std::make_unique<QuietTrainer>(
        model, nn::CrossEntropyLoss(), toy_sgd(model),
        TrainerOptions{.callbacks = more, .accelerator = {.device = "cpu"}});
  }

  torch::nn::Sequential model;
  std::shared_ptr<KeepLosses> losses = std::make_shared<KeepLosses>();
  std::unique_ptr<QuietTrainer> trainer;
};

std::shared_ptr<StepBasedEvaluation> every(int64_t num_updates) {
  return make<StepBasedEvaluation>({.every_n_updates = num_updates});
}

TEST(StepBasedEvaluationTest, EvaluatesEveryNUpdatesOfTheRun) {
  class EvaluateBeside : public Callback {
   public:
    void on_eval_epoch_start(Trainer& trainer) override {
      if (!trainer.is_intermediate_evaluation()) return;
      updates.push_back(trainer.num_updates());
    }
    std::vector<int64_t> updates;
  };
  auto beside = std::make_shared<EvaluateBeside>();
  Toy toy({beside, every(3)});
  TrainOptions options = epochs(2);
  options.gradient_accumulation_steps = 2;
  options.num_epochs = 3;
  toy.trainer.train(options);  // 3 updates per epoch
  EXPECT_EQ(beside->updates, (std::vector<int64_t>{3, 6, 9}));
  const auto& history = toy.trainer.run_history();
  EXPECT_EQ(history.get_metric_values("intermediate_eval_loss").size(), 3U);
  // At the last update of an epoch, both evaluations use the same weights.
  EXPECT_EQ(history.get_metric_values("intermediate_eval_loss"),
            history.get_metric_values("eval_loss_epoch"));
}

TEST(StepBasedEvaluationTest, ContinuesInTrainingModeWithTheSameLosses) {
  class AssertTraining : public Callback {
   public:
    void on_train_step_start(Trainer& trainer) override {
      EXPECT_TRUE(trainer.model().is_training());
    }
  };
  Dropping plain;
  plain.trainer->train(epochs(2));
  Dropping watched({every(1), std::make_shared<AssertTraining>()});
  watched.trainer->train(epochs(2));
  EXPECT_EQ(watched.losses->losses, plain.losses->losses);
  EXPECT_TRUE(bit_equal(watched.model->parameters(), plain.model->parameters()));
  EXPECT_TRUE(bit_equal(watched.model->buffers(), plain.model->buffers()));
  for (const char* metric : {"train_loss_epoch", "eval_loss_epoch"}) {
    EXPECT_EQ(watched.trainer->run_history().get_metric_values(metric),
              plain.trainer->run_history().get_metric_values(metric));
  }
}

TEST(StepBasedEvaluationTest, ReportsItsEvaluations) {
  Toy toy({every(4)});
  toy.trainer.train(epochs(1));
  EXPECT_EQ(toy.trainer.lines, (std::vector<std::string>{"Running evaluation after 4 updates",
                                                         "Resuming training..."}));
}

TEST(StepBasedEvaluationTest, DoesNotCountSkippedUpdates) {
  class SkipLast : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;
    void optimizer_step() override {
      if (num_updates() == 4) return accelerator().skip_optimizer_step();
      Trainer::optimizer_step();
    }
  };
  const auto model = toy_model();
  SkipLast trainer(model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                   {.callbacks = {every(4)}, .accelerator = {.device = "cpu"}});
  trainer.train(epochs(1));  // 4 updates and a skipped fifth one
  EXPECT_EQ(trainer.run_history().get_metric_values("intermediate_eval_loss").size(), 1U);
}

TEST(StepBasedEvaluationTest, AStopDuringItSavesThePreviousUpdate) {
  class StopInEvaluation : public Callback {
   public:
    void on_eval_step_start(Trainer& trainer) override {
      if (trainer.num_updates() == 7) trainer.request_stop();
    }
  };
  const TemporaryFolder folder;
  Dropping whole({every(1)});
  whole.trainer->train(epochs(2));
  Dropping first({std::make_shared<StopInEvaluation>(), every(1),
                  make<SaveTrainingState>({.directory = folder.path()})});
  EXPECT_EQ(first.trainer->train(epochs(2)).num_updates, 7);
  Dropping second({every(1)});
  TrainOptions rest = epochs(2);
  rest.resume_from = folder.path();
  second.trainer->train(rest);
  EXPECT_TRUE(bit_equal(second.model->parameters(), whole.model->parameters()));
}

TEST(StepBasedEvaluationTest, DoesNothingInEvaluate) {
  Toy toy({every(1)});
  toy.trainer.evaluate({.dataset = toy_data(6)});
  EXPECT_TRUE(toy.trainer.lines.empty());
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
