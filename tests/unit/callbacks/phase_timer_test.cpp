// The values that PhaseTimer measures with a clock that only the parts of the run advance.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/phase_timer.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/fake_time.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::phase_timer_test {
namespace {

/// Seconds for each part of a run.
constexpr int kForward = 2;
constexpr int kBackward = 7;
constexpr int kOptimizer = 5;
constexpr int kEvalStep = 100;
constexpr int kBetweenUpdates = 1000;

struct PhasesRun : TimedRun<PhaseTimer> {
  explicit PhasesRun(const CallbackList& more = {},
                     PhaseTimerOptions timer_options = {.warmup_micro_steps = 0})
      : TimedRun({.forward = kForward,
                  .backward = kBackward,
                  .optimizer = kOptimizer,
                  .eval_step = kEvalStep},
                 timer_options, more) {}
};

constexpr double kUpdate = kForward + kBackward + kOptimizer;

std::vector<double> twice(double value) { return {value, value}; }

TEST(PhaseTimerTest, RecordsEpochsAndTheMeansOfTheirStagesAndKeepsTheSumsOfTheRun) {
  PhasesRun run;
  run.train();
  EXPECT_EQ(run.values("train_epoch_time"), twice(4 * kUpdate));
  EXPECT_EQ(run.values("train_forward_time"), twice(kForward));
  EXPECT_EQ(run.values("train_backward_time"), twice(kBackward));
  EXPECT_EQ(run.values("train_optimizer_time"), twice(kOptimizer));
  EXPECT_EQ(run.values("eval_epoch_time"), twice(2 * kEvalStep));
  EXPECT_EQ(run.values("eval_step_time"), twice(kEvalStep));
  const auto& sums = run.timed->sums();
  EXPECT_EQ(sums.at("train_forward_time").count, 8);
  EXPECT_EQ(sums.at("train_forward_time").seconds, 8 * kForward);
  EXPECT_EQ(sums.at("train_epoch_time").seconds, 8 * kUpdate);
  EXPECT_EQ(sums.at("eval_step_time").count, 4);
  EXPECT_EQ(sums.at("eval_epoch_time").mean(), 2 * kEvalStep);
}

TEST(PhaseTimerTest, ASecondRunStartsItsSumsFromZero) {
  PhasesRun run;
  run.train();
  run.train();
  EXPECT_EQ(run.timed->sums().at("train_forward_time").count, 8);
  EXPECT_EQ(run.values("train_epoch_time"), twice(4 * kUpdate));
}

TEST(PhaseTimerTest, ExcludesWarmUpStepsFromTheMeansButNotFromTheEpoch) {
  PhasesRun run({}, {.warmup_micro_steps = 2});
  run.trainer.callback_handler().add(std::make_shared<AtUpdate>(
      2, [&](Trainer&) { run.trainer.seconds.forward = 10 * kForward; }));
  run.options.num_epochs = 1;
  run.train();
  EXPECT_EQ(run.values("train_forward_time"), std::vector<double>{10 * kForward});
  EXPECT_EQ(run.timed->sums().at("train_backward_time").count, 2);
  EXPECT_EQ(run.values("train_epoch_time"), std::vector<double>{4 * kUpdate + 2 * 9 * kForward});
}

TEST(PhaseTimerTest, AnEpochOfOnlyWarmUpStepsHasNoMeans) {
  PhasesRun run({}, {.warmup_micro_steps = 4});
  run.train();
  EXPECT_EQ(run.values("train_forward_time"), std::vector<double>{kForward});
  EXPECT_EQ(run.values("train_epoch_time"), twice(4 * kUpdate));
}

TEST(PhaseTimerTest, ExcludesBackwardPassesWithinAWindow) {
  PhasesRun run;
  run.options.gradient_accumulation_steps = 2;
  run.train();
  EXPECT_EQ(run.values("train_backward_time"), twice(kBackward));
  EXPECT_EQ(run.timed->sums().at("train_backward_time").count, 4);
  EXPECT_EQ(run.timed->sums().at("train_forward_time").count, 8);
}

TEST(PhaseTimerTest, AnIntermediateEvaluationIsNotTrainingTime) {
  for (const auto phase : {Callback::Phase::record,
                           Callback::Phase::evaluate}) {  // before or after PhaseTimer's event
    SCOPED_TRACE(static_cast<int>(phase));
    auto evaluate = std::make_shared<AtUpdate>(
        2, [](Trainer& trainer) { trainer.evaluate_now({.metric_prefix = "step_"}); });
    evaluate->set_phase(phase);
    PhasesRun run({evaluate});
    run.train();
    EXPECT_EQ(run.values("train_epoch_time"), twice(4 * kUpdate));
    EXPECT_EQ(run.values("train_optimizer_time"), twice(kOptimizer));
    EXPECT_EQ(run.values("step_eval_epoch_time"), std::vector<double>{2 * kEvalStep});
    EXPECT_EQ(run.values("eval_epoch_time"), twice(2 * kEvalStep));
  }
}

TEST(PhaseTimerTest, AnEvaluationWithinAnEvaluationIsExcluded) {
  // Evaluates again at the end of each evaluation, before PhaseTimer's event.
  auto evaluate_again = make<LambdaCallback>({.on_eval_epoch_end = [](Trainer& trainer) {
    if (!trainer.is_intermediate_evaluation()) trainer.evaluate_now({.metric_prefix = "again_"});
  }});
  evaluate_again->set_phase(Callback::Phase::record);
  PhasesRun run({evaluate_again});
  run.train();
  EXPECT_EQ(run.values("again_eval_epoch_time"), twice(2 * kEvalStep));
  EXPECT_EQ(run.values("eval_epoch_time"), twice(2 * kEvalStep));
  EXPECT_EQ(run.values("eval_step_time"), twice(kEvalStep));
}

TEST(PhaseTimerTest, AnAbandonedEvaluationIsNotTrainingTime) {
  const TemporaryFolder folder;
  const auto stop_in_evaluation = make<LambdaCallback>(
      {.on_train_update_end =
           [](Trainer& trainer) {
             if (trainer.num_updates() == 2) trainer.evaluate_now({.metric_prefix = "step_"});
           },
       .on_eval_step_end = [](Trainer& trainer, auto&, auto&) { trainer.request_stop(); }});
  PhasesRun first({stop_in_evaluation, make<SaveTrainingState>({.directory = folder.path()})});
  first.train();
  EXPECT_EQ(first.timed->state_dict().get_double("train_epoch_time"), 2 * kUpdate);
  PhasesRun second;
  second.resume(folder.path());
  EXPECT_EQ(second.values("train_epoch_time"), twice(4 * kUpdate));
}

TEST(PhaseTimerTest, WorkBetweenUpdatesCountsOnlyInTheEpoch) {
  PhasesRun run;
  auto wait =
      std::make_shared<AtUpdate>(2, [time = run.time](Trainer&) { time->pass(kBetweenUpdates); });
  wait->set_phase(Callback::Phase::evaluate);
  run.trainer.callback_handler().add(wait);
  run.options.num_epochs = 1;
  run.train();
  EXPECT_EQ(run.values("train_epoch_time"), std::vector<double>{4 * kUpdate + kBetweenUpdates});
  EXPECT_EQ(run.values("train_optimizer_time"), std::vector<double>{kOptimizer});
}

TEST(PhaseTimerTest, EvaluateReturnsItsTimes) {
  PhasesRun run;
  const Metrics metrics =
      run.trainer.evaluate({.dataset = toy_data(6), .per_device_batch_size = 2});
  EXPECT_EQ(metrics.at("eval_epoch_time"), 3 * kEvalStep);
  EXPECT_EQ(metrics.at("eval_step_time"), kEvalStep);
  EXPECT_EQ(metrics.count("train_epoch_time"), 0);
}

TEST(PhaseTimerTest, AResumedEpochCountsItsFirstPartButNotTheInterruption) {
  for (const int64_t stop : {2, 4}) {  // mid-epoch and at the epoch's end
    const TemporaryFolder folder;
    PhasesRun first({saving_every_update(folder.path()), stop_at(stop)});
    first.train();

    PhasesRun second;
    second.time->pass(1'000'000);
    second.resume(folder / "latest");
    EXPECT_EQ(second.values("train_epoch_time"), twice(4 * kUpdate)) << stop;
    EXPECT_EQ(second.values("train_backward_time"), twice(kBackward)) << stop;
  }
}

TEST(PhaseTimerTest, AnAbandonedEpochIsForgottenInTheNextRun) {
  PhasesRun run({stop_at(2)});
  run.train();
  EXPECT_TRUE(run.values("train_epoch_time").empty());
  run.options.max_num_updates = 1;
  run.train();
  EXPECT_EQ(run.values("train_epoch_time"), std::vector<double>{kUpdate});
}

TEST(PhaseTimerTest, SynchronizingChangesNothingOnTheCpu) {
  PhasesRun run({}, {.warmup_micro_steps = 0, .synchronize = true});
  run.train();
  EXPECT_EQ(run.values("train_forward_time"), twice(kForward));
}

TEST(PhaseTimerTest, TheMeanWithoutMeasurementsIsNaN) { EXPECT_TRUE(std::isnan(TimeSum().mean())); }

TEST(PhaseTimerTest, RejectsANegativeWarmUp) {
  EXPECT_ERROR(PhaseTimer({.warmup_micro_steps = -1}), "warmup_micro_steps is -1");
}

}  // namespace
}  // namespace linkboy::testing::phase_timer_test
