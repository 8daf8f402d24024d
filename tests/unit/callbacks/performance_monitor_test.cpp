// The values that PerformanceMonitor measures with a clock that only the parts of the run advance.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "linkboy/callbacks/performance_monitor.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/fake_time.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::performance_monitor_test {
namespace {

/// Seconds for a batch, a forward pass, a backward pass, an evaluation batch, and the work of
/// another callback after an update.
constexpr int kBatch = 3;
constexpr int kForward = 2;
constexpr int kBackward = 7;
constexpr int kEvalBatch = 1000;
constexpr int kAfterUpdate = 4;

struct MonitoredRun : TimedRun<PerformanceMonitor> {
  explicit MonitoredRun(const CallbackList& more = {},
                        PerformanceMonitorOptions monitor_options = {})
      : TimedRun({.forward = kForward, .backward = kBackward}, monitor_options, more) {
    options.num_epochs = 3;
    options.train_dataloader_options = batches_take(kBatch);
    options.eval_dataloader_options = batches_take(kEvalBatch);
  }

  DataLoaderOptions batches_take(int seconds) const {
    return {.num_workers = 0, .transform = [time = time, seconds](Batch batch, const auto&) {
              time->pass(seconds);
              return batch;
            }};
  }
};

constexpr double kStep = kBatch + kForward + kBackward;

std::vector<double> thrice(double value) { return {value, value, value}; }

TEST(PerformanceMonitorTest, RecordsRateStepAndDataTimeOfEachEpochWithoutItsEvaluation) {
  MonitoredRun run;
  run.train();
  EXPECT_EQ(run.values("train_step_time"), thrice(kStep));
  EXPECT_EQ(run.values("train_data_time"), thrice(kBatch));
  EXPECT_EQ(run.values("train_samples_per_second"), thrice(2 / kStep));
}

TEST(PerformanceMonitorTest, WorkOfOtherCallbacksIsNotDataTime) {
  MonitoredRun run;
  auto work = make<LambdaCallback>(
      {.on_train_update_end = [&](Trainer&) { run.time->pass(kAfterUpdate); }});
  work->set_phase(Callback::Phase::save);
  run.trainer.callback_handler().add(work);
  run.train();
  EXPECT_EQ(run.values("train_data_time"), thrice(kBatch));
  EXPECT_EQ(run.values("train_step_time"), thrice(kStep + kAfterUpdate));
}

TEST(PerformanceMonitorTest, BackwardPassesWithinAWindowAreNotDataTime) {
  MonitoredRun run;
  run.options.gradient_accumulation_steps = 2;
  run.train();
  EXPECT_EQ(run.values("train_data_time"), thrice(kBatch));
  EXPECT_EQ(run.values("train_step_time"), thrice(kStep));
  EXPECT_EQ(run.timed->last_epoch()->num_waits, 2);
  EXPECT_EQ(run.timed->last_epoch()->num_steps, 4);
}

TEST(PerformanceMonitorTest, EvaluationBetweenTwoUpdatesDoesNotCount) {
  MonitoredRun run(
      {std::make_shared<AtUpdate>(2, [](Trainer& trainer) { trainer.evaluate_now({}); })});
  run.train();
  EXPECT_EQ(run.values("train_step_time"), thrice(kStep));
  EXPECT_EQ(run.values("train_data_time"), thrice(kBatch));
  EXPECT_EQ(run.timed->recent().step_time(), kStep);
}

TEST(PerformanceMonitorTest, RecordsTeraflopsIfTheFlopsPerSampleAreGiven) {
  MonitoredRun run({}, {.flops_per_sample = 6e12});
  run.train();
  EXPECT_EQ(run.values("train_tflops"), thrice(6 * 2 / kStep));
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
  EXPECT_EQ(recent.data_time(), kBatch);
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
    EXPECT_EQ(second.values("train_step_time"), thrice(kStep));
    EXPECT_EQ(second.values("train_data_time"), thrice(kBatch));
    EXPECT_EQ(second.values("train_samples_per_second"), thrice(2 / kStep));
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
  EXPECT_TRUE(std::isnan(nothing.data_time()));
}

TEST(PerformanceMonitorTest, RejectsOptionsOutOfRange) {
  EXPECT_ERROR(PerformanceMonitor({.num_recent_updates = 0}), "num_recent_updates is 0");
  EXPECT_ERROR(PerformanceMonitor({.flops_per_sample = 0.0}), "flops_per_sample is 0");
}

}  // namespace
}  // namespace linkboy::testing::performance_monitor_test
