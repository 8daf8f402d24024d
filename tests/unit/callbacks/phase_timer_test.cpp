// The values that PhaseTimer measures with a clock that only the parts of the run advance.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "linkboy/callbacks/phase_timer.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/fake_time.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::timing_test {
namespace {

/// Seconds for each part of a run.
constexpr int kForward = 2;
constexpr int kBackward = 7;
constexpr int kOptimizer = 5;
constexpr int kEvalStep = 100;
constexpr int kBetweenUpdates = 1000;

/// A run whose epochs have four updates and two evaluation steps.
struct TimedRun {
  explicit TimedRun(CallbackList more = {},
                    PhaseTimerOptions timing_options = {.warmup_micro_steps = 0})
      : timing(std::make_shared<ByFakeTime<PhaseTimer>>(time, timing_options)),
        model(toy_model()),
        trainer(time,
                {.forward = kForward,
                 .backward = kBackward,
                 .optimizer = kOptimizer,
                 .eval_step = kEvalStep},
                model, torch::nn::CrossEntropyLoss(), toy_sgd(model),
                TrainerOptions{.callbacks = with_timing(std::move(more)),
                               .accelerator = {.device = "cpu"}}) {
    options = {.train_dataset = toy_data(8),
               .num_epochs = 2,
               .eval_dataset = toy_data(4),
               .per_device_batch_size = 2};
  }

  CallbackList with_timing(CallbackList callbacks) {
    callbacks.insert(callbacks.begin(), timing);
    return callbacks;
  }
  std::vector<double> values(std::string_view name) {
    return trainer.run_history().get_metric_values(name);
  }

  std::shared_ptr<FakeTime> time = std::make_shared<FakeTime>();
  std::shared_ptr<ByFakeTime<PhaseTimer>> timing;
  torch::nn::Sequential model;
  SlowTrainer trainer;
  TrainOptions options;
};

constexpr double kUpdate = kForward + kBackward + kOptimizer;

std::vector<double> twice(double value) { return {value, value}; }

TEST(PhaseTimerTest, RecordsEpochsAndTheMeansOfTheirStages) {
  TimedRun run;
  run.trainer.train(run.options);
  EXPECT_EQ(run.values("train_epoch_time"), twice(4 * kUpdate));
  EXPECT_EQ(run.values("train_forward_time"), twice(kForward));
  EXPECT_EQ(run.values("train_backward_time"), twice(kBackward));
  EXPECT_EQ(run.values("train_optimizer_time"), twice(kOptimizer));
  EXPECT_EQ(run.values("eval_epoch_time"), twice(2 * kEvalStep));
  EXPECT_EQ(run.values("eval_step_time"), twice(kEvalStep));
}

TEST(PhaseTimerTest, KeepsTheSumsOfTheRun) {
  TimedRun run;
  run.trainer.train(run.options);
  const auto& sums = run.timing->sums();
  EXPECT_EQ(sums.at("train_forward_time").count, 8);
  EXPECT_EQ(sums.at("train_forward_time").seconds, 8 * kForward);
  EXPECT_EQ(sums.at("train_epoch_time").seconds, 8 * kUpdate);
  EXPECT_EQ(sums.at("eval_step_time").count, 4);
  EXPECT_EQ(sums.at("eval_epoch_time").mean(), 2 * kEvalStep);
}

TEST(PhaseTimerTest, ASecondRunStartsItsSumsFromZero) {
  TimedRun run;
  run.trainer.train(run.options);
  run.trainer.train(run.options);
  EXPECT_EQ(run.timing->sums().at("train_forward_time").count, 8);
  EXPECT_EQ(run.values("train_epoch_time"), twice(4 * kUpdate));
}

TEST(PhaseTimerTest, ExcludesWarmUpStepsFromTheMeansButNotFromTheEpoch) {
  TimedRun run({}, {.warmup_micro_steps = 2});
  run.trainer.callback_handler().add(std::make_shared<AtUpdate>(
      2, [&](Trainer&) { run.trainer.seconds.forward = 10 * kForward; }));
  run.options.num_epochs = 1;
  run.trainer.train(run.options);
  EXPECT_EQ(run.values("train_forward_time"), std::vector<double>{10 * kForward});
  EXPECT_EQ(run.timing->sums().at("train_backward_time").count, 2);
  EXPECT_EQ(run.values("train_epoch_time"), std::vector<double>{4 * kUpdate + 2 * 9 * kForward});
}

TEST(PhaseTimerTest, AnEpochOfOnlyWarmUpStepsHasNoMeans) {
  TimedRun run({}, {.warmup_micro_steps = 4});
  run.trainer.train(run.options);
  EXPECT_EQ(run.values("train_forward_time"), std::vector<double>{kForward});
  EXPECT_EQ(run.values("train_epoch_time"), twice(4 * kUpdate));
}

TEST(PhaseTimerTest, ExcludesBackwardPassesWithinAWindow) {
  TimedRun run;
  run.options.gradient_accumulation_steps = 2;
  run.trainer.train(run.options);
  EXPECT_EQ(run.values("train_backward_time"), twice(kBackward));
  EXPECT_EQ(run.timing->sums().at("train_backward_time").count, 4);
  EXPECT_EQ(run.timing->sums().at("train_forward_time").count, 8);
}

TEST(PhaseTimerTest, AnIntermediateEvaluationIsNotTrainingTime) {
  for (const auto phase : {Callback::Phase::record,
                           Callback::Phase::evaluate}) {  // before or after PhaseTimer's event
    auto evaluate = std::make_shared<AtUpdate>(
        2, [](Trainer& trainer) { trainer.evaluate_now({.metric_prefix = "step_"}); });
    evaluate->set_phase(phase);
    TimedRun run({evaluate});
    run.trainer.train(run.options);
    EXPECT_EQ(run.values("train_epoch_time"), twice(4 * kUpdate)) << static_cast<int>(phase);
    EXPECT_EQ(run.values("train_optimizer_time"), twice(kOptimizer)) << static_cast<int>(phase);
    EXPECT_EQ(run.values("step_eval_epoch_time"), std::vector<double>{2 * kEvalStep})
        << static_cast<int>(phase);
    EXPECT_EQ(run.values("eval_epoch_time"), twice(2 * kEvalStep)) << static_cast<int>(phase);
  }
}

/// Evaluates again at the end of each evaluation, before PhaseTimer's event.
class EvaluateTwice : public Callback {
 public:
  Phase default_phase() const override { return Phase::record; }
  void on_eval_epoch_end(Trainer& trainer) override {
    if (!trainer.is_intermediate_evaluation()) trainer.evaluate_now({.metric_prefix = "again_"});
  }
};

TEST(PhaseTimerTest, AnEvaluationWithinAnEvaluationIsExcluded) {
  TimedRun run({std::make_shared<EvaluateTwice>()});
  run.trainer.train(run.options);
  EXPECT_EQ(run.values("again_eval_epoch_time"), twice(2 * kEvalStep));
  EXPECT_EQ(run.values("eval_epoch_time"), twice(2 * kEvalStep));
  EXPECT_EQ(run.values("eval_step_time"), twice(kEvalStep));
}

TEST(PhaseTimerTest, AnAbandonedEvaluationIsNotTrainingTime) {
  const TemporaryFolder folder;
  class StopInEvaluation : public Callback {
   public:
    void on_train_update_end(Trainer& trainer) override {
      if (trainer.num_updates() == 2) trainer.evaluate_now({.metric_prefix = "step_"});
    }
    void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
      trainer.request_stop();
    }
  };
  TimedRun first({std::make_shared<StopInEvaluation>(),
                  make<SaveTrainingState>({.directory = folder.path()})});
  first.trainer.train(first.options);
  EXPECT_EQ(first.timing->state_dict().get_double("train_epoch_time"), 2 * kUpdate);
  TimedRun second;
  second.options.resume_from = folder.path();
  second.trainer.train(second.options);
  EXPECT_EQ(second.values("train_epoch_time"), twice(4 * kUpdate));
}

TEST(PhaseTimerTest, WorkBetweenUpdatesCountsOnlyInTheEpoch) {
  TimedRun run;
  auto wait =
      std::make_shared<AtUpdate>(2, [time = run.time](Trainer&) { time->pass(kBetweenUpdates); });
  wait->set_phase(Callback::Phase::evaluate);
  run.trainer.callback_handler().add(wait);
  run.options.num_epochs = 1;
  run.trainer.train(run.options);
  EXPECT_EQ(run.values("train_epoch_time"), std::vector<double>{4 * kUpdate + kBetweenUpdates});
  EXPECT_EQ(run.values("train_optimizer_time"), std::vector<double>{kOptimizer});
}

TEST(PhaseTimerTest, EvaluateReturnsItsTimes) {
  TimedRun run;
  const Metrics metrics =
      run.trainer.evaluate({.dataset = toy_data(6), .per_device_batch_size = 2});
  EXPECT_EQ(metrics.at("eval_epoch_time"), 3 * kEvalStep);
  EXPECT_EQ(metrics.at("eval_step_time"), kEvalStep);
  EXPECT_EQ(metrics.count("train_epoch_time"), 0);
}

TEST(PhaseTimerTest, AResumedEpochCountsItsFirstPartButNotTheInterruption) {
  for (const int64_t stop : {2, 4}) {  // mid-epoch and at the epoch's end
    const TemporaryFolder folder;
    const SaveTrainingStateOptions saving{.directory = folder.path(), .every_n_updates = 1};
    TimedRun first({std::make_shared<SaveTrainingState>(saving), stop_at(stop)});
    first.trainer.train(first.options);

    TimedRun second;
    second.time->pass(1'000'000);
    second.options.resume_from = folder / "latest";
    second.trainer.train(second.options);
    EXPECT_EQ(second.values("train_epoch_time"), twice(4 * kUpdate)) << stop;
    EXPECT_EQ(second.values("train_backward_time"), twice(kBackward)) << stop;
  }
}

TEST(PhaseTimerTest, AStoppedEvaluationIsNotTrainingTimeOfTheResumedEpoch) {
  const TemporaryFolder folder;
  class EvaluateAt : public Callback {
   public:
    void on_train_update_end(Trainer& trainer) override {
      if (trainer.num_updates() == 2) trainer.evaluate_now({.metric_prefix = "extra_"});
    }
    void on_eval_step_end(Trainer& trainer, const Batch&, const StepOutput&) override {
      if (trainer.num_updates() == 2) trainer.request_stop();
    }
  };
  TimedRun first(
      {std::make_shared<EvaluateAt>(), make<SaveTrainingState>({.directory = folder.path()})});
  first.trainer.train(first.options);
  TimedRun second;
  second.options.resume_from = folder / "latest";
  second.trainer.train(second.options);
  EXPECT_EQ(second.values("train_epoch_time"), twice(4 * kUpdate));
}

TEST(PhaseTimerTest, AnAbandonedEpochIsForgottenInTheNextRun) {
  TimedRun run({stop_at(2)});
  run.trainer.train(run.options);
  EXPECT_TRUE(run.values("train_epoch_time").empty());
  run.options.max_num_updates = 1;
  run.trainer.train(run.options);
  EXPECT_EQ(run.values("train_epoch_time"), std::vector<double>{kUpdate});
}

TEST(PhaseTimerTest, SynchronizingChangesNothingOnTheCpu) {
  TimedRun run({}, {.warmup_micro_steps = 0, .synchronize = true});
  run.trainer.train(run.options);
  EXPECT_EQ(run.values("train_forward_time"), twice(kForward));
}

TEST(PhaseTimerTest, TheMeanWithoutMeasurementsIsNaN) { EXPECT_TRUE(std::isnan(TimeSum().mean())); }

TEST(PhaseTimerTest, RejectsANegativeWarmUp) {
  EXPECT_ERROR(PhaseTimer({.warmup_micro_steps = -1}), "warmup_micro_steps is -1");
}

}  // namespace
}  // namespace linkboy::testing::timing_test
