// The conditions under which TimeLimit ends a run, with a clock that only the steps advance.

#include <gtest/gtest.h>

#include <chrono>

#include "linkboy/callbacks/time_limit.hpp"
#include "support/expect_error.hpp"
#include "support/matchers.hpp"
#include "support/saved_states.hpp"
#include "support/temporary_folder.hpp"

namespace linkboy::testing::time_limit_test {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Each training or evaluation step takes a second.
class StepTimer : public TimeLimit {
 public:
  explicit StepTimer(milliseconds max_time) : TimeLimit({.max_time = max_time}) {}

  void on_train_step_start(Trainer&) override { time += seconds(1); }
  void on_eval_step_start(Trainer&) override { time += seconds(1); }

  Clock::time_point time{};

 protected:
  Clock::time_point now() const override { return time; }
};

struct TimedToy {
  explicit TimedToy(milliseconds max_time) : timer(std::make_shared<StepTimer>(max_time)) {}

  std::shared_ptr<StepTimer> timer;
  Toy toy{{timer}};
  Trainer& trainer = toy.trainer;
};

/// Returns options with four training steps and two evaluation steps per epoch.
TrainOptions run_of(int64_t num_epochs) {
  return {.train_dataset = toy_data(8),
          .eval_dataset = toy_data(4),
          .per_device_batch_size = 2,
          .num_epochs = num_epochs};
}

TEST(TimeLimitTest, EndsTheRunAfterTheUpdateInWhichTheTimeRunsOut) {
  TimedToy run(milliseconds(2500));
  const TrainResult result = run.trainer.train(run_of(5));
  EXPECT_EQ(result.reason, StopReason::stop_request);
  EXPECT_THAT(result.message, HasSubstr("time limit of 2.5 s"));
  EXPECT_EQ(result.num_updates, 3);
  EXPECT_EQ(run.timer->elapsed(), seconds(3));
}

TEST(TimeLimitTest, NeverLeavesAnAccumulatedUpdateHalfDone) {
  TimedToy run(seconds(1));
  TrainOptions options = run_of(5);
  options.gradient_accumulation_steps = 2;
  EXPECT_EQ(run.trainer.train(options).num_updates, 1);
  EXPECT_EQ(run.trainer.run().micro_step(), 2);
}

TEST(TimeLimitTest, EndsTheRunInAnEvaluationAfterTheBatch) {
  TimedToy run(seconds(5));
  const TrainResult result = run.trainer.train(run_of(5));
  EXPECT_EQ(result.reason, StopReason::stop_request);
  EXPECT_EQ(result.num_updates, 4);
  EXPECT_EQ(result.num_epochs, 0);
  EXPECT_EQ(run.timer->elapsed(), seconds(5));
}

TEST(TimeLimitTest, EachNewRunHasTheFullTime) {
  TimedToy run(seconds(8));
  EXPECT_EQ(run.trainer.train(run_of(1)).reason, StopReason::finished);
  EXPECT_EQ(run.trainer.train(run_of(1)).reason, StopReason::finished);
  EXPECT_EQ(run.timer->elapsed(), seconds(6));
}

TEST(TimeLimitTest, AResumedRunHasTheRemainingTime) {
  const TemporaryFolder folder;
  Toy first({std::make_shared<StepTimer>(seconds(3)), saving_every_update(folder.path())});
  ASSERT_EQ(first.trainer.train(run_of(5)).num_updates, 3);

  TimedToy second(milliseconds(7500));
  second.timer->time += hours(1000);
  // 4 steps and an evaluation of 2 steps take 6 seconds.
  EXPECT_EQ(second.trainer.train(resumed_from(folder / "latest", run_of(5))).num_updates, 6);
  EXPECT_EQ(second.timer->elapsed(), seconds(8));
}

TEST(TimeLimitTest, DoesNotLimitEvaluateAndMeasuresRealTimeByDefault) {
  TimedToy run(seconds(1));
  EXPECT_EQ(run.trainer.evaluate({.dataset = toy_data(8), .per_device_batch_size = 2})
                .count("evaluation_loss"),
            1);
  const auto timer = make<TimeLimit>({.max_time = hours(10)});
  EXPECT_EQ(Toy({timer}).trainer.train(run_of(1)).reason, StopReason::finished);
  EXPECT_LT(timer->elapsed(), hours(10));
}

TEST(TimeLimitTest, RejectsALimitThatIsNotPositive) {
  EXPECT_ERROR(TimeLimit({.max_time = seconds(0)}), "max_time is 0 ms");
  EXPECT_ERROR(TimeLimit({.max_time = seconds(-1)}), "max_time is -1000 ms");
}

}  // namespace
}  // namespace linkboy::testing::time_limit_test
