// What a stop interrupts, and what callbacks can do after it.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/callbacks/step_based_evaluation.hpp"
#include "support/at_update.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::stopped_run_test {
namespace {

TEST(StoppedRunTest, CallbacksAtTheEndOfAStoppedRunCanEvaluateAndPredict) {
  const std::vector<std::function<void(Trainer&)>> ways{
      [](Trainer& trainer) { trainer.request_stop(StopReason::early_stop); },
      [](Trainer& trainer) { trainer.request_stop(); },
      [](Trainer&) { throw StopTraining("enough"); }};
  for (const auto& stop : ways) {
    int64_t num_predicted = 0;
    int64_t num_called = 0;
    Toy toy({std::make_shared<AtUpdate>(3, stop)});
    toy.on(Event::training_run_end, [&](Trainer& trainer) {
      EXPECT_FALSE(trainer.requested_stop());
      trainer.evaluate_now({.metric_prefix = "last_"});
      num_predicted = trainer.predict({.dataset = toy_data(5)}).toTensor().size(0);
      ++num_called;
    });
    const TrainResult result = toy.trainer.train(two_updates_per_epoch(4));
    EXPECT_EQ(result.num_updates, 3);
    EXPECT_NE(result.reason, StopReason::finished);
    EXPECT_EQ(num_predicted, 5);
    EXPECT_EQ(num_called, 1);
    EXPECT_EQ(toy.values("last_eval_loss_epoch").size(), 1U);
    EXPECT_FALSE(toy.trainer.stop_requested());
  }
}

TEST(StoppedRunTest, ASecondRequestEndsAnEvaluationAtTheEndOfTheRun) {
  int64_t num_batches = 0;
  Toy toy({stop_at(1)});
  toy.on(Event::eval_step_end, [&](Trainer& trainer) {
    ++num_batches;
    trainer.request_stop();
  });
  toy.on(Event::training_run_end, [](Trainer& trainer) { trainer.evaluate_now({}); });
  TrainOptions options = two_updates_per_epoch(4);
  options.eval_dataset = toy_data(12);
  EXPECT_EQ(toy.trainer.train(options).num_updates, 1);
  EXPECT_EQ(num_batches, 1);
  EXPECT_FALSE(toy.trainer.stop_requested()) << "the next run is not affected";
}

TEST(StoppedRunTest, OnlyAStopRequestOfTheUserInterruptsAnEvaluation) {
  StopReason reason{};
  int64_t num_ended = 0;
  Toy toy;
  toy.on(Event::training_run_epoch_end, [&](Trainer& trainer) { trainer.request_stop(reason); });
  toy.on(Event::training_run_epoch_end,
         [](Trainer& trainer) { trainer.evaluate_now({.metric_prefix = "more_"}); });
  toy.on(Event::training_run_epoch_end, [&](Trainer&) { ++num_ended; });
  for (const StopReason each : {StopReason::early_stop, StopReason::nan, StopReason::stop_request,
                                StopReason::early_stop}) {
    SCOPED_TRACE(to_string(each));
    reason = each;
    num_ended = 0;
    const TrainResult result = toy.trainer.train(two_updates_per_epoch(4));
    const bool is_interrupted = reason == StopReason::stop_request;
    EXPECT_EQ(result.reason, reason);
    EXPECT_EQ(result.num_epochs, is_interrupted ? 0 : 1);
    EXPECT_EQ(num_ended, is_interrupted ? 0 : 1);
    EXPECT_EQ(toy.values("more_eval_loss_epoch").size(), is_interrupted ? 0U : 1U);
  }
}

TEST(StoppedRunTest, AStopRequestAfterEarlyStoppingInterruptsAnEvaluationToo) {
  Toy toy;
  toy.on(Event::eval_step_end, [](Trainer& trainer) {
    if (trainer.run().is_intermediate_evaluation()) trainer.request_stop();
  });
  toy.on(Event::training_run_epoch_end, [](Trainer& trainer) {
    trainer.request_stop(StopReason::early_stop);
    trainer.evaluate_now({});
  });
  TrainOptions options = two_updates_per_epoch(4);
  options.eval_dataset = toy_data(12);
  const TrainResult result = toy.trainer.train(options);
  EXPECT_EQ(result.num_epochs, 0);
  EXPECT_EQ(result.reason, StopReason::early_stop) << "the first reason is reported";
}

TEST(StoppedRunTest, AStopTrainingInTheLastStepsOfARunHasNoEffect) {
  class Stops : public QuietTrainer {
   public:
    using QuietTrainer::QuietTrainer;

   protected:
    void training_run_end() override { throw StopTraining("too late"); }
    void evaluation_run_end() override { throw StopTraining("too late"); }
  };
  int64_t num_ends = 0;
  ToyOf<Stops> toy;
  toy.on(Event::training_run_end, [&](Trainer&) { ++num_ends; });
  toy.on(Event::evaluation_run_end, [&](Trainer&) { ++num_ends; });
  toy.on(Event::run_exit, [](Trainer&) { throw StopTraining("too late"); });
  EXPECT_EQ(toy.train().reason, StopReason::finished);
  EXPECT_EQ(toy.trainer.evaluate({.dataset = toy_data(4)}).size(), 1U);
  toy.trainer.predict({.dataset = toy_data(4)});
  EXPECT_EQ(num_ends, 2);
}

std::shared_ptr<Callback> evaluating_each_update() {
  return make<StepBasedEvaluation>({.every_n_updates = 1});
}

TEST(StoppedRunTest, AnInterruptedEvaluationLeavesNoMetrics) {
  const TemporaryFolder folder;
  TrainOptions options = two_updates_per_epoch(2);
  options.more_eval_datasets = {{"more", toy_data(6)}};
  options.evaluate_before_training = true;
  Toy whole({evaluating_each_update()});
  whole.trainer.train(options);
  // A stop between the two batches of the second set: in the evaluation before training, and in one
  // of StepBasedEvaluation.
  for (const int64_t update : {0, 1}) {
    SCOPED_TRACE(update);
    const auto states = folder / std::to_string(update);
    Toy first({evaluating_each_update(), make<SaveTrainingState>({.directory = states})});
    first.on(Event::eval_step_end, [&](Trainer& trainer) {
      const bool is_second_set = trainer.run().evaluation_set_name() == "more";
      if (is_second_set && trainer.num_updates() == update) trainer.request_stop();
    });
    EXPECT_EQ(first.trainer.train(options).num_updates, update);
    Toy second({evaluating_each_update()});
    second.trainer.train(resumed_from(states, options));
    for (const std::string& name : whole.trainer.run_history().get_metric_names()) {
      EXPECT_EQ(second.values(name), whole.values(name)) << name;
    }
    EXPECT_EQ(second.values("initial_eval_loss_epoch").size(), 1U);
  }
}

TEST(StoppedRunTest, AnEvaluationWhoseLastSetIsCompleteKeepsItsMetrics) {
  const TemporaryFolder folder;
  Toy first({evaluating_each_update(), make<SaveTrainingState>({.directory = folder.path()})});
  first.on(Event::eval_epoch_end, [](Trainer& trainer) {
    if (trainer.num_updates() == 1) throw StopTraining("enough");
  });
  first.trainer.train(two_updates_per_epoch(2));
  EXPECT_EQ(first.values("intermediate_eval_loss").size(), 1U);
  Toy second({evaluating_each_update()});
  second.trainer.train(resumed_from(folder.path(), two_updates_per_epoch(2)));
  EXPECT_EQ(second.values("intermediate_eval_loss").size(), 4U);
}

TEST(StoppedRunTest, ACompleteEvaluationBeforeTrainingIsNotRepeated) {
  for (const bool is_thrown : {false, true}) {
    SCOPED_TRACE(is_thrown);
    const TemporaryFolder folder;
    TrainOptions options = two_updates_per_epoch(1);
    options.evaluate_before_training = true;
    Toy first({make<SaveTrainingState>({.directory = folder.path()})});
    first.on(Event::eval_epoch_end, [&](Trainer& trainer) {
      if (is_thrown) throw StopTraining("enough");
      trainer.request_stop();
    });
    EXPECT_EQ(first.trainer.train(options).num_updates, 0);
    EXPECT_EQ(first.values("initial_eval_loss_epoch").size(), 1U);
    Toy second;
    EXPECT_EQ(second.trainer.train(resumed_from(folder.path(), options)).num_updates, 2);
    EXPECT_EQ(second.values("initial_eval_loss_epoch").size(), 1U);
  }
}

}  // namespace
}  // namespace linkboy::testing::stopped_run_test
