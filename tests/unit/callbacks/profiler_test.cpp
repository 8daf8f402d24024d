// The times at which Profiler writes a trace: by its schedule, and at any end of the run.

#include "linkboy/callbacks/profiler.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include <functional>
#include <set>
#include <stdexcept>

#include "linkboy/callbacks/lambda_callback.hpp"
#include "support/at_update.hpp"
#include "support/expect_error.hpp"
#include "support/file_size_limit.hpp"
#include "support/matchers.hpp"
#include "unit/callbacks/profiled_run.hpp"

namespace linkboy::testing::profiler_test {
namespace {

namespace kineto = torch::autograd::profiler;

TEST(ProfilerScheduleTest, EqualsPythonsSchedule) {
  const auto phases = [](const ProfilerSchedule& schedule) {
    std::string text;
    for (int64_t step = 0; step < 16; ++step) {
      const auto phase = schedule.phase_of(step);
      const bool is_active = phase == ProfilerSchedule::Phase::active;
      text += is_active ? (schedule.ends_cycle(step) ? 'S' : 'R')
                        : (phase == ProfilerSchedule::Phase::warmup ? 'w' : '.');
    }
    return text;
  };
  // Values of torch.profiler.schedule in PyTorch 2.11.0.
  EXPECT_EQ(phases({}), ".....wwRRRRS....");
  EXPECT_EQ(phases({.skip_first = 2, .wait = 1, .warmup = 1, .active = 2, .repeat = 2}),
            "...wRS.wRS......");
  EXPECT_EQ(phases({.wait = 1, .warmup = 1, .active = 2, .repeat = 0}), ".wRS.wRS.wRS.wRS");
  EXPECT_EQ(phases({.wait = 0, .warmup = 0, .active = 1, .repeat = 3}), "SSS.............");
  EXPECT_EQ(phases({.skip_first = 3, .wait = 0, .warmup = 2, .active = 1, .repeat = 0}),
            "...wwSwwSwwSwwSw");
}

/// Fails after the backward pass of a step.
std::shared_ptr<Callback> failing_at(int64_t step, const std::function<void()>& fail) {
  return make<LambdaCallback>({.on_gradients_ready = [=, now = int64_t{0}](Trainer&) mutable {
    if (now++ == step) fail();
  }});
}

void lose_power() { throw std::runtime_error("the power went"); }

constexpr ProfilerSchedule kFirstStep{.wait = 0, .warmup = 0, .active = 1};
constexpr ProfilerSchedule kAllSteps{.wait = 0, .warmup = 0, .active = 100};

TEST_F(ProfilerTest, EachCycleHasAFileAndLaterRunsContinueTheNumbers) {
  const ProfilerSchedule schedule{
      .skip_first = 1, .wait = 1, .warmup = 0, .active = 2, .repeat = 2};
  const auto profiler = profiled(schedule, epochs(3));
  ASSERT_EQ(profiler->traces().size(), 2U);
  EXPECT_THAT(trace_of(*profiler, 0).steps(), ElementsAre(2, 3));
  EXPECT_THAT(trace_of(*profiler, 1).steps(), ElementsAre(5, 6));
  auto again = trainer({profiler});
  again.train(epochs(1));
  again.train(epochs(2));
  profiled(schedule, epochs(1));
  std::vector<std::string> names;
  for (const char* part :
       {"1-cycle-1", "1-cycle-2", "2-cycle-1", "3-cycle-1", "3-cycle-2", "4-cycle-1"}) {
    names.push_back("run-" + std::string(part) + "-rank-0.pt.trace.json");
  }
  EXPECT_EQ(folder_.names(), names);
}

TEST_F(ProfilerTest, StepsAreMicroSteps) {
  TrainOptions options = epochs(2);
  options.gradient_accumulation_steps = 4;
  const auto profiler = profiled({.wait = 1, .warmup = 1, .active = 1, .repeat = 2}, options);
  ASSERT_EQ(profiler->traces().size(), 2U);
  EXPECT_THAT(trace_of(*profiler, 0).steps(), ElementsAre(2));
  EXPECT_THAT(trace_of(*profiler, 1).steps(), ElementsAre(5));
}

TEST_F(ProfilerTest, ACycleEndedByTheEndOfTheRunIsWritten) {
  const auto profiler = profiled({.wait = 0, .warmup = 2, .active = 100}, epochs(1));
  ASSERT_EQ(profiler->traces().size(), 1U);
  EXPECT_THAT(trace_of(*profiler).steps(), ElementsAre(2, 3));
}

TEST_F(ProfilerTest, ACycleEndedByAStopRequestIsWritten) {
  const auto profiler = this->profiler(kAllSteps);
  trainer({profiler, stop_at(1)}).train(epochs(1));
  const ProfilerTrace trace = trace_of(*profiler);
  EXPECT_THAT(trace.steps(), ElementsAre(0));
  EXPECT_EQ(trace.annotations().front(), "ProfilerStep#0");
  EXPECT_TRUE(trace.events("user_annotation", "ProfilerStep#1").empty());
}

TEST_F(ProfilerTest, ACycleEndedByStopTrainingIsWritten) {
  const auto profiler = this->profiler(kAllSteps);
  const auto stop = [] { throw StopTraining(StopReason::nan, "NaN"); };
  EXPECT_EQ(trainer({profiler, failing_at(2, stop)}).train(epochs(1)).reason, StopReason::nan);
  EXPECT_THAT(trace_of(*profiler).steps(), ElementsAre(0, 1, 2));
}

TEST_F(ProfilerTest, ACycleEndedByAnExceptionIsWrittenAndAnotherRunCanBeProfiled) {
  const auto profiler = this->profiler({.wait = 0, .warmup = 1, .active = 100});
  auto failing = trainer({profiler, failing_at(2, lose_power)});
  EXPECT_THROW(failing.train(epochs(1)), std::runtime_error);
  EXPECT_THAT(trace_of(*profiler).steps(), ElementsAre(1, 2));
  EXPECT_TRUE(profiler_is_off());
  failing.train(epochs(1));
  EXPECT_THAT(trace_of(*profiler).steps(), ElementsAre(4, 5, 6));
}

TEST_F(ProfilerTest, ARunThatEndsInTheWarmUpWritesNoTraceAndDisablesTheProfiler) {
  const auto profiler = profiled({.wait = 0, .warmup = 100, .active = 1}, epochs(1));
  EXPECT_TRUE(profiler->traces().empty());
  auto failing = trainer({profiler, failing_at(1, lose_power)});
  EXPECT_THROW(failing.train(epochs(1)), std::runtime_error);
  EXPECT_TRUE(folder_.names().empty());
  EXPECT_TRUE(profiler_is_off());
  EXPECT_THAT(trace_of(*profiled(kFirstStep, epochs(1))).steps(), ElementsAre(0));
}

TEST_F(ProfilerTest, DestructionInTheMiddleOfARunDisablesTheProfiler) {
  auto trainer = this->trainer({});
  {
    const auto profiler = this->profiler(kAllSteps);
    profiler->on_training_run_start(trainer);
    profiler->on_train_epoch_start(trainer);
    EXPECT_FALSE(profiler_is_off());
  }
  EXPECT_TRUE(profiler_is_off());
  EXPECT_EQ(profiled(kFirstStep, epochs(1))->traces().size(), 1U);
}

TEST_F(ProfilerTest, TwoProfilersAtTheSameTimeAreAnError) {
  const auto profiler = this->profiler(kFirstStep);
  const auto train_another = make<LambdaCallback>({.on_train_epoch_start = [&](Trainer&) {
    EXPECT_ERROR(profiled({}, epochs(1)), "another run of this process uses a Profiler");
  }});
  trainer({profiler, train_another}).train(epochs(1));
  EXPECT_THAT(trace_of(*profiler).steps(), ElementsAre(0));
}

bool refuses(const std::function<void()>& work) {
  try {
    work();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

TEST_F(ProfilerTest, AnotherActiveProfilerIsAnErrorAndStaysActive) {
  const kineto::ProfilerConfig config(kineto::ProfilerState::KINETO);
  const std::set<kineto::ActivityType> activities{kineto::ActivityType::CPU};
  auto profiler = this->profiler({.wait = 0, .warmup = 1, .active = 1});
  kineto::prepareProfiler(config, activities);
  // LibTorch 2.15 accepts a second preparation.
  if (refuses([&] { kineto::prepareProfiler(config, activities); })) {
    EXPECT_ERROR(trainer({profiler}).train(epochs(1)), "LibTorch's profiler cannot start: ");
  }
  kineto::enableProfiler(config, activities);
  EXPECT_ERROR(trainer({profiler}).train(epochs(1)), "LibTorch's profiler is already on");
  EXPECT_TRUE(kineto::profilerEnabled());
  kineto::disableProfiler();
}

TEST_F(ProfilerTest, RejectsNumbersOutOfRange) {
  const auto make = [](ProfilerSchedule schedule) { Profiler({.schedule = schedule}); };
  EXPECT_ERROR(make({.skip_first = -1}), "skip_first is -1; it must be at least 0");
  EXPECT_ERROR(make({.wait = -2}), "wait is -2; it must be at least 0");
  EXPECT_ERROR(make({.warmup = -3}), "warmup is -3; it must be at least 0");
  EXPECT_ERROR(make({.active = 0}), "active is 0; it must be at least 1");
  EXPECT_ERROR(make({.repeat = -1}), "repeat is -1; it must be at least 0");
  EXPECT_ERROR(Profiler({.num_table_rows = -1}), "num_table_rows is -1; it must be at least 0");
}

TEST_F(ProfilerTest, AnUnwritableDirectoryIsReportedBeforeTraining) {
  auto trainer = this->trainer({make<Profiler>({.directory = "/proc/no/traces"})});
  EXPECT_ERROR(trainer.train(epochs(1)), "/proc/no");
  EXPECT_EQ(trainer.num_updates(), 0);
}

TEST_F(ProfilerTest, AFullDiskIsReportedWithThePathAndDoesNotEndTheRun) {
  auto profiler = this->profiler(kFirstStep);
  auto trainer = this->trainer({profiler});
  {
    const FileSizeLimit limit(4096);
    EXPECT_EQ(trainer.train(epochs(1)).num_updates, 4);
  }
  EXPECT_EQ(profiler->num_failures(), 1);
  EXPECT_TRUE(profiler->traces().empty());
  EXPECT_TRUE(folder_.names().empty());
  ASSERT_FALSE(trainer.lines.empty());
  const std::string& line = trainer.lines.front();
  EXPECT_TRUE(line.starts_with("ERROR: the trace ")) << line;
  EXPECT_NE(line.find("run-1-cycle-1-rank-0.pt.trace.json was not written"), std::string::npos);
}

}  // namespace
}  // namespace linkboy::testing::profiler_test
