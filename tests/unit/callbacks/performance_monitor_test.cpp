// The values that PerformanceMonitor measures with a clock that only the parts of the run advance.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <vector>

#include "linkboy/callbacks/performance_monitor.hpp"
#include "linkboy/callbacks/save_training_state.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/fake_time.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::performance_monitor_test {
namespace {

/// Seconds for a batch, a forward pass, a backward pass, an evaluation batch, and the work of
/// another callback after an update.
constexpr int kBatch = 3;
constexpr int kForward = 2;
constexpr int kBackward = 7;
constexpr int kEvalBatch = 1000;
constexpr int kAfterUpdate = 4;

class SlowAfterUpdate : public Callback {
 public:
  explicit SlowAfterUpdate(std::shared_ptr<FakeTime> time) : time_(std::move(time)) {}
  Phase default_phase() const override { return Phase::save; }
  void on_train_update_end(Trainer&) override { time_->pass(kAfterUpdate); }

 private:
  std::shared_ptr<FakeTime> time_;
};

/// A run with evaluation, whose epochs have four batches of two samples.
struct TimedRun {
  explicit TimedRun(CallbackList more = {}, PerformanceMonitorOptions monitor_options = {})
      : monitor(std::make_shared<ByFakeTime<PerformanceMonitor>>(time, monitor_options)),
        model(toy_model()),
        trainer(time, {.forward = kForward, .backward = kBackward}, model,
                torch::nn::CrossEntropyLoss(), toy_sgd(model),
                TrainerOptions{.callbacks = with_monitor(std::move(more)),
                               .accelerator = {.device = "cpu"}}) {
    const auto takes = [this](int count) {
      return DataLoaderOptions{.num_workers = 0,
                               .transform = [time = time, count](Batch batch, const auto&) {
                                 time->pass(count);
                                 return batch;
                               }};
    };
    options = {.train_dataset = toy_data(8),
               .num_epochs = 3,
               .eval_dataset = toy_data(4),
               .per_device_batch_size = 2,
               .train_dataloader_options = takes(kBatch),
               .eval_dataloader_options = takes(kEvalBatch)};
  }

  CallbackList with_monitor(CallbackList callbacks) {
    callbacks.insert(callbacks.begin(), monitor);
    return callbacks;
  }
  std::vector<double> values(std::string_view name) {
    return trainer.run_history().get_metric_values(name);
  }

  std::shared_ptr<FakeTime> time = std::make_shared<FakeTime>();
  std::shared_ptr<ByFakeTime<PerformanceMonitor>> monitor;
  torch::nn::Sequential model;
  SlowTrainer trainer;
  TrainOptions options;
};

constexpr double kStep = kBatch + kForward + kBackward;

std::vector<double> thrice(double value) { return {value, value, value}; }

TEST(PerformanceMonitorTest, RecordsRateStepAndDataTimeOfEachEpochWithoutItsEvaluation) {
  TimedRun run;
  run.trainer.train(run.options);
  EXPECT_EQ(run.values("train_step_time"), thrice(kStep));
  EXPECT_EQ(run.values("train_data_time"), thrice(kBatch));
  EXPECT_EQ(run.values("train_samples_per_second"), thrice(2 / kStep));
}

TEST(PerformanceMonitorTest, WorkOfOtherCallbacksIsNotDataTime) {
  TimedRun run;
  run.trainer.callback_handler().add(std::make_shared<SlowAfterUpdate>(run.time));
  run.trainer.train(run.options);
  EXPECT_EQ(run.values("train_data_time"), thrice(kBatch));
  EXPECT_EQ(run.values("train_step_time"), thrice(kStep + kAfterUpdate));
}

TEST(PerformanceMonitorTest, BackwardPassesWithinAWindowAreNotDataTime) {
  TimedRun run;
  run.options.gradient_accumulation_steps = 2;
  run.trainer.train(run.options);
  EXPECT_EQ(run.values("train_data_time"), thrice(kBatch));
  EXPECT_EQ(run.values("train_step_time"), thrice(kStep));
  EXPECT_EQ(run.monitor->last_epoch()->num_waits, 2);
  EXPECT_EQ(run.monitor->last_epoch()->num_steps, 4);
}

TEST(PerformanceMonitorTest, EvaluationBetweenTwoUpdatesDoesNotCount) {
  TimedRun run({std::make_shared<AtUpdate>(2, [](Trainer& trainer) { trainer.evaluate_now({}); })});
  run.trainer.train(run.options);
  EXPECT_EQ(run.values("train_step_time"), thrice(kStep));
  EXPECT_EQ(run.values("train_data_time"), thrice(kBatch));
  EXPECT_EQ(run.monitor->recent().step_time(), kStep);
}

TEST(PerformanceMonitorTest, RecordsTeraflopsIfTheFlopsPerSampleAreGiven) {
  TimedRun run({}, {.flops_per_sample = 6e12});
  run.trainer.train(run.options);
  EXPECT_EQ(run.values("train_tflops"), thrice(6 * 2 / kStep));
  TimedRun without;
  without.trainer.train(without.options);
  EXPECT_TRUE(without.values("train_tflops").empty());
}

TEST(PerformanceMonitorTest, ReturnsTheLastEpochAndTheRecentUpdates) {
  TimedRun run({}, {.num_recent_updates = 3});
  run.options.num_epochs = 1;
  run.trainer.train(run.options);
  ASSERT_TRUE(run.monitor->last_epoch());
  EXPECT_EQ(run.monitor->last_epoch()->num_samples, 8);
  EXPECT_EQ(run.monitor->last_epoch()->seconds, 4 * kStep);
  const auto recent = run.monitor->recent();
  EXPECT_EQ(recent.num_steps, 3);
  EXPECT_EQ(recent.seconds, 3 * kStep);
  EXPECT_EQ(recent.data_time(), kBatch);
  EXPECT_EQ(recent.samples_per_second(), 2 / kStep);
}

TEST(PerformanceMonitorTest, RecentUpdatesCanSpanTwoEpochsWithoutCountingTheEvaluation) {
  TimedRun run({stop_at(5)});
  run.trainer.train(run.options);
  EXPECT_EQ(run.monitor->recent().num_steps, 5);
  EXPECT_EQ(run.monitor->recent().seconds, 5 * kStep);
}

TEST(PerformanceMonitorTest, AnAbandonedEpochIsNotRecordedButCanBeRead) {
  TimedRun run({stop_at(6)});
  run.trainer.train(run.options);
  EXPECT_EQ(run.values("train_step_time"), std::vector<double>{kStep});
  EXPECT_EQ(run.monitor->epoch_so_far().num_steps, 2);
  run.time->pass(1000);
  EXPECT_EQ(run.monitor->epoch_so_far().step_time(), kStep);
}

TEST(PerformanceMonitorTest, AResumedEpochCountsItsFirstPartButNotTheInterruption) {
  const TemporaryFolder folder;
  const SaveTrainingStateOptions saving{.directory = folder.path(), .every_n_updates = 1};
  TimedRun first({std::make_shared<SaveTrainingState>(saving), stop_at(6)});
  first.trainer.train(first.options);

  TimedRun second({std::make_shared<SaveTrainingState>(saving)});
  second.time->pass(1'000'000);
  second.options.resume_from = folder / "latest";
  second.trainer.train(second.options);
  EXPECT_EQ(second.trainer.num_updates(), 12);
  EXPECT_EQ(second.values("train_step_time"), thrice(kStep));
  EXPECT_EQ(second.values("train_data_time"), thrice(kBatch));
  EXPECT_EQ(second.values("train_samples_per_second"), thrice(2 / kStep));
}

TEST(PerformanceMonitorTest, AnEpochResumedAtItsEndStillHasItsValues) {
  const TemporaryFolder folder;
  const SaveTrainingStateOptions saving{.directory = folder.path(), .every_n_updates = 1};
  TimedRun first({std::make_shared<SaveTrainingState>(saving), stop_at(8)});
  first.trainer.train(first.options);

  TimedRun second;
  second.options.resume_from = folder / "latest";
  second.trainer.train(second.options);
  EXPECT_EQ(second.values("train_step_time"), thrice(kStep));
}

TEST(PerformanceMonitorTest, ARunResumedFromAStateWithoutItsValuesCountsFromThere) {
  const TemporaryFolder folder;
  Toy plain(
      {stop_at(6), make<SaveTrainingState>({.directory = folder.path(), .every_n_updates = 1})});
  TimedRun run({stop_at(3)});
  plain.trainer.train(run.options);
  run.trainer.train(run.options);  // stops in the middle of an epoch
  run.options.resume_from = folder / "latest";
  run.options.num_epochs = 2;
  run.trainer.train(run.options);
  ASSERT_TRUE(run.monitor->last_epoch());
  EXPECT_EQ(run.monitor->last_epoch()->num_steps, 2);
}

TEST(PerformanceMonitorTest, ValuesWithoutMeasurementsAreNaN) {
  const TrainPerformance nothing;
  EXPECT_TRUE(std::isnan(nothing.samples_per_second()));
  EXPECT_TRUE(std::isnan(nothing.step_time()));
  EXPECT_TRUE(std::isnan(nothing.data_time()));
}

TEST(PerformanceMonitorTest, RejectsZeroRecentUpdates) {
  EXPECT_ERROR(PerformanceMonitor({.num_recent_updates = 0}), "num_recent_updates is 0");
}

TEST(PerformanceMonitorTest, RejectsFlopsThatAreNotPositive) {
  EXPECT_ERROR(PerformanceMonitor({.flops_per_sample = 0.0}), "flops_per_sample is 0");
}

}  // namespace
}  // namespace linkboy::testing::performance_monitor_test
