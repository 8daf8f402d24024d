// The conditions under which TimeLimit ends a run, with a clock that only the steps advance.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "linkboy/callbacks/save_training_state.hpp"
#include "linkboy/callbacks/time_limit.hpp"
#include "support/expect_error.hpp"
#include "support/temporary_folder.hpp"
#include "support/toy.hpp"

namespace linkboy::testing::timer_test {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Each training or evaluation step takes a second.
class StepTimer : public TimeLimit {
 public:
  explicit StepTimer(TimeLimitOptions options) : TimeLimit(options) {}

  void on_train_step_start(Trainer&) override { time += seconds(1); }
  void on_eval_step_start(Trainer&) override { time += seconds(1); }

  Clock::time_point time{};

 protected:
  Clock::time_point now() const override { return time; }
};

/// Returns options with four training steps and two evaluation steps per epoch.
TrainOptions run_of(int64_t num_epochs) {
  return {.train_dataset = toy_data(8),
          .num_epochs = num_epochs,
          .eval_dataset = toy_data(4),
          .per_device_batch_size = 2};
}

TEST(TimeLimitTest, EndsTheRunAfterTheUpdateInWhichTheTimeRunsOut) {
  const auto timer = std::make_shared<StepTimer>(TimeLimitOptions{.max_time = milliseconds(2500)});
  Toy toy({timer});
  const TrainResult result = toy.trainer.train(run_of(5));
  EXPECT_EQ(result.reason, StopReason::stop_request);
  EXPECT_EQ(result.num_updates, 3);
  EXPECT_EQ(timer->elapsed(), seconds(3));
}

TEST(TimeLimitTest, TheMessageNamesTheLimit) {
  Toy toy({std::make_shared<StepTimer>(TimeLimitOptions{.max_time = milliseconds(2500)})});
  EXPECT_NE(toy.trainer.train(run_of(5)).message.find("time limit of 2.5 s"), std::string::npos);
}

TEST(TimeLimitTest, NeverLeavesAnAccumulatedUpdateHalfDone) {
  Toy toy({std::make_shared<StepTimer>(TimeLimitOptions{.max_time = seconds(1)})});
  TrainOptions options = run_of(5);
  options.gradient_accumulation_steps = 2;
  EXPECT_EQ(toy.trainer.train(options).num_updates, 1);
  EXPECT_EQ(toy.trainer.micro_step(), 2);
}

TEST(TimeLimitTest, EndsTheRunInAnEvaluationAfterTheBatch) {
  const auto timer = std::make_shared<StepTimer>(TimeLimitOptions{.max_time = seconds(5)});
  Toy toy({timer});
  const TrainResult result = toy.trainer.train(run_of(5));
  EXPECT_EQ(result.reason, StopReason::stop_request);
  EXPECT_EQ(result.num_updates, 4);
  EXPECT_EQ(result.num_epochs, 0);
  EXPECT_EQ(timer->elapsed(), seconds(5));
}

TEST(TimeLimitTest, ARunWithinItsTimeFinishes) {
  Toy toy({std::make_shared<StepTimer>(TimeLimitOptions{.max_time = hours(1)})});
  EXPECT_EQ(toy.trainer.train(run_of(2)).reason, StopReason::finished);
}

TEST(TimeLimitTest, EachNewRunHasTheFullTime) {
  const auto timer = std::make_shared<StepTimer>(TimeLimitOptions{.max_time = seconds(8)});
  Toy toy({timer});
  EXPECT_EQ(toy.trainer.train(run_of(1)).reason, StopReason::finished);
  EXPECT_EQ(toy.trainer.train(run_of(1)).reason, StopReason::finished);
  EXPECT_EQ(timer->elapsed(), seconds(6));
}

TEST(TimeLimitTest, AResumedRunHasTheRemainingTime) {
  const TemporaryFolder folder;
  const SaveTrainingStateOptions saving{.directory = folder.path(), .every_n_updates = 1};
  Toy first({std::make_shared<StepTimer>(TimeLimitOptions{.max_time = seconds(3)}),
             std::make_shared<SaveTrainingState>(saving)});
  ASSERT_EQ(first.trainer.train(run_of(5)).num_updates, 3);

  const auto timer = std::make_shared<StepTimer>(TimeLimitOptions{.max_time = milliseconds(7500)});
  timer->time += hours(1000);
  Toy second({timer});
  TrainOptions options = run_of(5);
  options.resume_from = folder / "latest";
  // 4 steps and an evaluation of 2 steps take 6 seconds.
  EXPECT_EQ(second.trainer.train(options).num_updates, 6);
  EXPECT_EQ(timer->elapsed(), seconds(8));
}

TEST(TimeLimitTest, DoesNotLimitEvaluate) {
  const auto timer = std::make_shared<StepTimer>(TimeLimitOptions{.max_time = seconds(1)});
  Toy toy({timer});
  const Metrics metrics = toy.trainer.evaluate({.dataset = toy_data(8)});
  EXPECT_EQ(metrics.count("evaluation_loss"), 1);
}

TEST(TimeLimitTest, MeasuresRealTimeByDefault) {
  const auto timer = make<TimeLimit>({.max_time = hours(10)});
  Toy toy({timer});
  EXPECT_EQ(toy.trainer.train(run_of(1)).reason, StopReason::finished);
  EXPECT_LT(timer->elapsed(), hours(10));
}

TEST(TimeLimitTest, RejectsALimitThatIsNotPositive) {
  EXPECT_ERROR(TimeLimit({.max_time = seconds(0)}), "max_time is 0 ms");
  EXPECT_ERROR(TimeLimit({.max_time = seconds(-1)}), "max_time is -1000 ms");
}

}  // namespace
}  // namespace linkboy::testing::timer_test
