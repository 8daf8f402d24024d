// Trainers that override the complete step or run.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "linkboy/callbacks/save_training_state.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::overridden_loop_test {
namespace {

/// Makes two passes over each batch; each counts half.
class TwoPasses : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

 protected:
  void train_step(const Batch& batch) override {
    fire<Event::train_step_start>();
    const StepOutput output = forward(batch);
    fire<Event::train_step_end>(batch, output);
    backward_step(output.loss * 0.5);
    backward_step(calculate_train_batch_loss(batch).loss * 0.5);
    if (is_update_due()) update();
  }
};

TEST(OverriddenLoopTest, ATrainStepWithItsOwnPassesMakesTheSameUpdates) {
  const TrainOptions options{.train_dataset = toy_data(20), .num_epochs = 2};
  Toy plain;
  ToyOf<TwoPasses> own;
  const TrainResult expected = plain.train(options);
  EXPECT_EQ(own.train(options).num_updates, expected.num_updates);
  EXPECT_TRUE(bit_equal(own.model->parameters(), plain.model->parameters()));
  EXPECT_EQ(own.values("train_loss_epoch"), plain.values("train_loss_epoch"));
}

/// Skips the batches 1, 5, 9, ... (from 0), each of which is the last one of a window of two.
class SkipsBatches : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  int num_leftovers = 0;

 protected:
  void train_step(const Batch& batch) override {
    const bool has_gradient = model().parameters().front().grad().defined();
    if (has_gradient && run().micro_step() % 2 == 0) ++num_leftovers;
    if (run().micro_step() % 4 != 1) QuietTrainer::train_step(batch);
  }
};

TEST(OverriddenLoopTest, AWindowWithoutAnUpdateIsDropped) {
  ToyOf<SkipsBatches> own;
  const TrainResult result =
      own.train({.train_dataset = toy_data(64), .num_epochs = 2, .gradient_accumulation_steps = 2});
  EXPECT_EQ(result.num_epochs, 2);
  EXPECT_EQ(result.num_updates, 2 * 2);  // of 8 batches, 4 windows each
  EXPECT_EQ(own.trainer.num_leftovers, 0);
}

/// Runs `step` instead of the default step.
class StepOf : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  std::function<void(StepOf&, const Batch&)> step;
  using QuietTrainer::backward_step;
  using QuietTrainer::calculate_train_batch_loss;
  using QuietTrainer::forward;
  using QuietTrainer::update;

 protected:
  void train_step(const Batch& batch) override { step(*this, batch); }
};

TEST(OverriddenLoopTest, StepsThatBreakTheRulesOfALoopAreErrors) {
  const auto expect_error = [](decltype(StepOf::step) step, const TrainOptions& options,
                               const char* message) {
    ToyOf<StepOf> own;
    own.trainer.step = std::move(step);
    EXPECT_ERROR(own.train(options), message);
  };
  expect_error([](StepOf& trainer, const Batch& batch) { trainer.forward(batch); },
               {.max_num_updates = 3}, "must call update() if is_update_due()");
  const auto always_updates = [](StepOf& trainer, const Batch& batch) {
    trainer.backward_step(trainer.calculate_train_batch_loss(batch).loss);
    trainer.update();
  };
  expect_error(always_updates, {.per_device_batch_size = 4, .gradient_accumulation_steps = 2},
               "does not end its accumulation window");
  expect_error(always_updates, {.weight_by_batch_size = true}, "train_step did not call them");
  EXPECT_ERROR(
      ToyOf<StepOf>().trainer.forward(Batch(torch::ones({2, 4}), torch::ones({2}, at::kLong))),
      "outside of train_step");
}

/// Never evaluates, even if there is evaluation data.
class OnlyTrains : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;

 protected:
  void run_training() override {
    while (begin_epoch()) {
      run_train_epoch(*run().train_dataloader());
      scheduler_epoch_end();
      end_epoch();
    }
  }
};

TEST(OverriddenLoopTest, ACustomRunIsCountedLikeTheDefaultOne) {
  const TrainOptions options{
      .train_dataset = toy_data(20), .eval_dataset = toy_data(8), .num_epochs = 3};
  Toy plain;
  ToyOf<OnlyTrains> own;
  plain.train(options);
  const TrainResult result = own.train(options);
  EXPECT_EQ(result.reason, StopReason::finished);
  EXPECT_EQ(result.num_epochs, 3);
  EXPECT_TRUE(bit_equal(own.model->parameters(), plain.model->parameters()));
  EXPECT_TRUE(own.values("eval_loss_epoch").empty());
  EXPECT_TRUE(own.trainer.run().is_last_epoch());
}

TEST(OverriddenLoopTest, ACustomEvaluationRecordsItsOwnMetric) {
  class CountsRows : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;

   protected:
    void run_eval_epoch(DataLoader& loader, std::string_view) override {
      int64_t num_rows = 0;
      for (const Batch& batch : loader.batches(1)) num_rows += batch.size();
      run_history().update_metric(run().metric_name("rows"), static_cast<double>(num_rows));
    }
  };
  ToyOf<CountsRows> own;
  own.train({.eval_dataset = toy_data(6), .num_epochs = 2});
  EXPECT_EQ(own.values("eval_rows"), (std::vector<double>{6, 6}));
  EXPECT_TRUE(own.values("eval_loss_epoch").empty());
}

/// Trains `num_epochs` epochs at most, without `end_epoch`.
class EndsNoEpoch : public QuietTrainer {
 public:
  using QuietTrainer::QuietTrainer;
  int num_epochs = 2;

 protected:
  void run_training() override {
    while (num_epochs-- > 0 && begin_epoch()) run_train_epoch(*run().train_dataloader());
  }
};

TEST(OverriddenLoopTest, ARunThatLeavesItsEpochOpenLeavesNoStateForTheNextRun) {
  const TemporaryFolder folder;
  ToyOf<EndsNoEpoch> own(
      {make<SaveTrainingState>({.directory = folder / "states", .save_at_end = false})});
  own.on(Event::train_step_end,
         [](Trainer& trainer) { EXPECT_FALSE(trainer.can_save_training_state()); });
  for (int run = 0; run < 2; ++run) {
    own.trainer.num_epochs = 1;
    own.train();
  }
}

TEST(OverriddenLoopTest, AnEpochThatIsNotEndedIsAnError) {
  EXPECT_ERROR(ToyOf<EndsNoEpoch>().train({.num_epochs = 2}),
               "must call end_epoch after each run_train_epoch");
}

}  // namespace
}  // namespace linkboy::testing::overridden_loop_test
