// The values that PerformanceMonitor measures with a clock that only the parts of the run advance.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/performance_monitor.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/failing_evaluation.hpp"
#include "support/fake_time.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::performance_monitor_test {
namespace {

/// Seconds for each part of a run, and for the work of another callback after an update.
constexpr int kBatch = 3;
constexpr int kForward = 2;
constexpr int kBackward = 7;
constexpr int kOptimizer = 5;
constexpr int kEvalBatch = 1000;
constexpr int kEvalStep = 100;
constexpr int kAfterUpdate = 4;
constexpr double kStep = kBatch + kForward + kBackward + kOptimizer;
constexpr double kEvaluation = 2 * (kEvalBatch + kEvalStep);

struct MonitoredRun : TimedRun<PerformanceMonitor> {
  explicit MonitoredRun(const CallbackList& more = {},
                        PerformanceMonitorOptions monitor_options = {.warmup_micro_steps = 0})
      : TimedRun({.forward = kForward,
                  .backward = kBackward,
                  .optimizer = kOptimizer,
                  .eval_step = kEvalStep},
                 monitor_options, more) {
    options.num_epochs = 3;
    options.train_dataloader_options = batches_take(kBatch);
    options.eval_dataloader_options = batches_take(kEvalBatch);
  }

  /// Expects that each of the three epochs has these values.
  void expect(const std::vector<std::pair<std::string, double>>& metrics) const {
    for (const auto& [name, value] : metrics) {
      EXPECT_EQ(values(name), std::vector<double>(3, value)) << name;
    }
  }

  /// Expects only the times of the parts.
  void expect_usual_times() const {
    expect({{"train_step_time", kStep},
            {"train_data_time", kBatch},
            {"train_samples_per_second", 2 / kStep},
            {"train_epoch_time", 4 * kStep},
            {"train_forward_time", kForward},
            {"train_backward_time", kBackward},
            {"train_optimizer_time", kOptimizer},
            {"eval_epoch_time", kEvaluation},
            {"eval_step_time", kEvalStep}});
  }

  DataLoaderOptions batches_take(int seconds) const {
    return {.num_workers = 0, .transform = [time = time, seconds](Batch batch, const auto&) {
              time->pass(seconds);
              return batch;
            }};
  }
};

TEST(PerformanceMonitorTest, RecordsRateStepAndDataTimeOfEachEpochWithoutItsEvaluation) {
  MonitoredRun run;
  run.train();
  run.expect_usual_times();
}

TEST(PerformanceMonitorTest, WorkOfOtherCallbacksIsNotDataTime) {
  MonitoredRun run;
  auto work = make<LambdaCallback>(
      {.on_train_update_end = [&](Trainer&) { run.time->pass(kAfterUpdate); }});
  work->set_phase(Callback::Phase::save);
  run.trainer.callback_handler().add(work);
  run.train();
  run.expect({{"train_data_time", kBatch},
              {"train_step_time", kStep + kAfterUpdate},
              {"train_optimizer_time", kOptimizer + kAfterUpdate}});
}

TEST(PerformanceMonitorTest, OnlyTheFirstWaitAndTheLastBackwardPassOfAWindowAreMeasured) {
  MonitoredRun run;
  run.options.gradient_accumulation_steps = 2;
  run.train();
  run.expect({{"train_data_time", kBatch},
              {"train_step_time", kStep - kOptimizer / 2.0},
              {"train_backward_time", kBackward}});
  EXPECT_EQ(run.timed->last_epoch()->data.count, 2);
  EXPECT_EQ(run.timed->last_epoch()->num_steps, 4);
  EXPECT_EQ(run.timed->last_epoch()->backward.count, 2);
  EXPECT_EQ(run.timed->last_epoch()->forward.count, 4);
}

TEST(PerformanceMonitorTest, EvaluationBetweenTwoUpdatesDoesNotCount) {
  for (const auto phase : {Callback::Phase::record, Callback::Phase::last}) {  // before or after
    SCOPED_TRACE(static_cast<int>(phase));
    auto evaluate = std::make_shared<AtUpdate>(
        2, [](Trainer& trainer) { trainer.evaluate_now({.metric_prefix = "step_"}); });
    evaluate->set_phase(phase);
    MonitoredRun run({evaluate});
    run.train();
    run.expect_usual_times();
    EXPECT_EQ(run.values("step_eval_epoch_time"), std::vector<double>{kEvaluation});
    EXPECT_EQ(run.timed->recent().step_time(), kStep);
  }
}

TEST(PerformanceMonitorTest, AnEvaluationWithinAnEvaluationIsExcluded) {
  // Evaluates again at the end of each evaluation, before PerformanceMonitor's event.
  auto evaluate_again = make<LambdaCallback>({.on_eval_epoch_end = [](Trainer& trainer) {
    if (!trainer.run().is_intermediate_evaluation())
      trainer.evaluate_now({.metric_prefix = "again_"});
  }});
  MonitoredRun run({evaluate_again});
  run.train();
  run.expect({{"again_eval_epoch_time", kEvaluation}});
  run.expect_usual_times();
}

TEST(PerformanceMonitorTest, AnAbandonedEvaluationIsNotTrainingTime) {
  const TemporaryFolder folder;
  const auto stop_in_evaluation = make<LambdaCallback>(
      {.on_train_update_end =
           [](Trainer& trainer) {
             if (trainer.num_updates() == 2) trainer.evaluate_now({.metric_prefix = "step_"});
           },
       .on_eval_step_end = [](Trainer& trainer, auto&, auto&) { trainer.request_stop(); }});
  MonitoredRun first({stop_in_evaluation, make<SaveTrainingState>({.directory = folder.path()})});
  first.train();
  EXPECT_EQ(first.timed->epoch_so_far().seconds, 2 * kStep);
  MonitoredRun second;
  second.resume(folder.path());
  second.expect({{"train_epoch_time", 4 * kStep}});
}

TEST(PerformanceMonitorTest, EvaluateReturnsItsTimes) {
  MonitoredRun run;
  const Metrics metrics =
      run.trainer.evaluate({.dataset = toy_data(6), .per_device_batch_size = 2});
  EXPECT_EQ(metrics.at("eval_epoch_time"), 3 * kEvalStep);
  EXPECT_EQ(metrics.at("eval_step_time"), kEvalStep);
  EXPECT_EQ(metrics.count("train_epoch_time"), 0);
}

TEST(PerformanceMonitorTest, WarmUpStepsCountOnlyInTheEpochAndItsWaits) {
  MonitoredRun run({}, {.warmup_micro_steps = 2});
  run.trainer.callback_handler().add(std::make_shared<AtUpdate>(
      2, [&](Trainer&) { run.trainer.seconds.forward = 10 * kForward; }));
  run.options.num_epochs = 1;
  run.train();
  EXPECT_EQ(run.values("train_forward_time"), std::vector<double>{10 * kForward});
  EXPECT_EQ(run.timed->last_epoch()->backward.count, 2);
  EXPECT_EQ(run.timed->last_epoch()->data.count, 4);
  EXPECT_EQ(run.values("train_epoch_time"), std::vector<double>{4 * kStep + 2 * 9 * kForward});

  MonitoredRun only({}, {.warmup_micro_steps = 4});
  only.options.num_epochs = 2;
  only.train();
  EXPECT_EQ(only.values("train_forward_time"), std::vector<double>{kForward});
  EXPECT_EQ(only.values("train_epoch_time"), (std::vector<double>{4 * kStep, 4 * kStep}));
}

TEST(PerformanceMonitorTest, SynchronizingChangesNothingOnTheCpu) {
  MonitoredRun run({}, {.warmup_micro_steps = 0, .synchronize = true});
  run.train();
  run.expect_usual_times();
}

TEST(PerformanceMonitorTest, ASecondRunForgetsTheAbandonedEpochOfTheFirst) {
  MonitoredRun run({stop_at(2)});
  run.train();
  EXPECT_TRUE(run.values("train_epoch_time").empty());
  run.options.max_num_updates = 1;
  run.train();
  EXPECT_EQ(run.values("train_epoch_time"), std::vector<double>{kStep});
}

TEST(PerformanceMonitorTest, AnEvaluationWhoseErrorIsCaughtDoesNotCount) {
  for_each_failing_evaluation([](const std::shared_ptr<Callback>& failing) {
    MonitoredRun run({failing});
    run.train();
    run.expect_usual_times();
  });
}

TEST(PerformanceMonitorTest, RecordsTeraflopsIfTheFlopsPerSampleAreGiven) {
  MonitoredRun run({}, {.flops_per_sample = 6e12});
  run.train();
  run.expect({{"train_tflops", 6 * 2 / kStep}});
  MonitoredRun without;
  without.train();
  EXPECT_TRUE(without.values("train_tflops").empty());
}

TEST(PerformanceMonitorTest, ReturnsTheLastEpochAndTheRecentUpdates) {
  MonitoredRun run({}, {.num_recent_updates = 3});
  run.options.num_epochs = 1;
  run.train();
  ASSERT_TRUE(run.timed->last_epoch());
  EXPECT_EQ(run.timed->last_epoch()->num_samples, 8);
  EXPECT_EQ(run.timed->last_epoch()->seconds, 4 * kStep);
  const auto recent = run.timed->recent();
  EXPECT_EQ(recent.num_steps, 3);
  EXPECT_EQ(recent.seconds, 3 * kStep);
  EXPECT_EQ(recent.data.mean(), kBatch);
  EXPECT_EQ(recent.samples_per_second(), 2 / kStep);
}

TEST(PerformanceMonitorTest, RecentUpdatesCanSpanTwoEpochsWithoutCountingTheEvaluation) {
  MonitoredRun run({stop_at(5)});
  run.train();
  EXPECT_EQ(run.timed->recent().num_steps, 5);
  EXPECT_EQ(run.timed->recent().seconds, 5 * kStep);
}

TEST(PerformanceMonitorTest, AnAbandonedEpochIsNotRecordedButCanBeRead) {
  MonitoredRun run({stop_at(6)});
  run.train();
  EXPECT_EQ(run.values("train_step_time"), std::vector<double>{kStep});
  EXPECT_EQ(run.timed->epoch_so_far().num_steps, 2);
  run.time->pass(1000);
  EXPECT_EQ(run.timed->epoch_so_far().step_time(), kStep);
}

TEST(PerformanceMonitorTest, AResumedEpochCountsItsFirstPartButNotTheInterruption) {
  for (const int64_t stop : {6, 8}) {  // mid-epoch and at the epoch's end
    SCOPED_TRACE(stop);
    const TemporaryFolder folder;
    MonitoredRun first({saving_every_update(folder.path()), stop_at(stop)});
    first.train();

    MonitoredRun second;
    second.time->pass(1'000'000);
    second.resume(folder / "latest");
    EXPECT_EQ(second.trainer.num_updates(), 12);
    second.expect_usual_times();
  }
}

TEST(PerformanceMonitorTest, ARunResumedFromAStateWithoutItsValuesCountsFromThere) {
  const TemporaryFolder folder;
  Toy plain({stop_at(6), saving_every_update(folder.path())});
  MonitoredRun run({stop_at(3)});
  plain.trainer.train(run.options);
  run.train();  // stops in the middle of an epoch
  run.options.num_epochs = 2;
  run.resume(folder / "latest");
  ASSERT_TRUE(run.timed->last_epoch());
  EXPECT_EQ(run.timed->last_epoch()->num_steps, 2);
}

TEST(PerformanceMonitorTest, ValuesWithoutMeasurementsAreNaN) {
  const TrainPerformance nothing;
  EXPECT_TRUE(std::isnan(nothing.samples_per_second()));
  EXPECT_TRUE(std::isnan(nothing.step_time()));
  EXPECT_TRUE(std::isnan(nothing.data.mean()));
}

TEST(PerformanceMonitorTest, RejectsOptionsOutOfRange) {
  EXPECT_ERROR(PerformanceMonitor({.num_recent_updates = 0}), "num_recent_updates is 0");
  EXPECT_ERROR(PerformanceMonitor({.flops_per_sample = 0.0}), "flops_per_sample is 0");
  EXPECT_ERROR(PerformanceMonitor({.warmup_micro_steps = -1}), "warmup_micro_steps is -1");
}

}  // namespace
}  // namespace linkboy::testing::performance_monitor_test
