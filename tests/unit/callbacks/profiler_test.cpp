// The times at which Profiler writes a trace: by its schedule, and at any end of the run.

#include "linkboy/callbacks/profiler.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/expect_error.hpp"
#include "support/file_size_limit.hpp"
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

TEST_F(ProfilerTest, EachCycleHasAFileAndLaterRunsContinueTheNumbers) {
  const ProfilerSchedule schedule{
      .skip_first = 1, .wait = 1, .warmup = 0, .active = 2, .repeat = 2};
  auto profiler = this->profiler(schedule);
  trainer({profiler})->train(epochs(3));
  ASSERT_EQ(profiler->traces().size(), 2U);
  EXPECT_EQ(ProfilerTrace(profiler->traces()[0]).steps(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(ProfilerTrace(profiler->traces()[1]).steps(), (std::vector<int64_t>{5, 6}));
  auto again = trainer({profiler});
  again->train(epochs(1));
  again->train(epochs(2));
  trainer({this->profiler(schedule)})->train(epochs(1));
  EXPECT_EQ(names(),
            (std::vector<std::string>{
                "run-1-cycle-1-rank-0.pt.trace.json", "run-1-cycle-2-rank-0.pt.trace.json",
                "run-2-cycle-1-rank-0.pt.trace.json", "run-3-cycle-1-rank-0.pt.trace.json",
                "run-3-cycle-2-rank-0.pt.trace.json", "run-4-cycle-1-rank-0.pt.trace.json"}));
}

TEST_F(ProfilerTest, StepsAreMicroSteps) {
  auto profiler = this->profiler({.wait = 1, .warmup = 1, .active = 1, .repeat = 2});
  TrainOptions options = epochs(2);
  options.gradient_accumulation_steps = 4;
  trainer({profiler})->train(options);
  ASSERT_EQ(profiler->traces().size(), 2U);
  EXPECT_EQ(ProfilerTrace(profiler->traces()[0]).steps(), std::vector<int64_t>{2});
  EXPECT_EQ(ProfilerTrace(profiler->traces()[1]).steps(), std::vector<int64_t>{5});
}

TEST_F(ProfilerTest, ACycleEndedByTheEndOfTheRunIsWritten) {
  auto profiler = this->profiler({.wait = 0, .warmup = 2, .active = 100});
  trainer({profiler})->train(epochs(1));
  ASSERT_EQ(profiler->traces().size(), 1U);
  EXPECT_EQ(ProfilerTrace(profiler->traces().front()).steps(), (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(profiler_is_off());
}

TEST_F(ProfilerTest, ACycleEndedByAStopRequestIsWritten) {
  class StopAtOnce : public Callback {
    void on_train_update_end(Trainer& trainer) override { trainer.request_stop(); }
  };
  auto profiler = this->profiler({.wait = 0, .warmup = 0, .active = 100});
  trainer({profiler, std::make_shared<StopAtOnce>()})->train(epochs(1));
  const ProfilerTrace trace(profiler->traces().at(0));
  EXPECT_EQ(trace.steps(), std::vector<int64_t>{0});
  EXPECT_EQ(trace.annotations().front(), "ProfilerStep#0");
  EXPECT_TRUE(trace.events("user_annotation", "ProfilerStep#1").empty());
  EXPECT_TRUE(profiler_is_off());
}

TEST_F(ProfilerTest, ACycleEndedByStopTrainingIsWritten) {
  auto profiler = this->profiler({.wait = 0, .warmup = 0, .active = 100});
  const auto result =
      throwing_trainer(2, StopTraining(StopReason::nan, "NaN"), profiler)->train(epochs(1));
  EXPECT_EQ(result.reason, StopReason::nan);
  EXPECT_EQ(ProfilerTrace(profiler->traces().at(0)).steps(), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_TRUE(profiler_is_off());
}

TEST_F(ProfilerTest, ACycleEndedByAnExceptionIsWrittenAndAnotherRunCanBeProfiled) {
  const ProfilerSchedule schedule{.wait = 0, .warmup = 1, .active = 100};
  auto profiler = this->profiler(schedule);
  auto trainer = throwing_trainer(2, std::runtime_error("the power went"), profiler);
  EXPECT_THROW(trainer->train(epochs(1)), std::runtime_error);
  EXPECT_EQ(ProfilerTrace(profiler->traces().at(0)).steps(), (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(profiler_is_off());
  trainer->train(epochs(1));
  EXPECT_EQ(ProfilerTrace(profiler->traces().at(0)).steps(), (std::vector<int64_t>{4, 5, 6}));
}

TEST_F(ProfilerTest, ARunThatEndsInTheWarmUpWritesNoTraceAndDisablesTheProfiler) {
  const ProfilerSchedule long_warm_up{.wait = 0, .warmup = 100, .active = 1};
  auto profiler = this->profiler(long_warm_up);
  trainer({profiler})->train(epochs(1));
  EXPECT_TRUE(profiler->traces().empty());
  auto throwing = throwing_trainer(1, std::runtime_error("no"), profiler);
  EXPECT_THROW(throwing->train(epochs(1)), std::runtime_error);
  EXPECT_TRUE(names().empty());
  EXPECT_TRUE(profiler_is_off());
  auto next = this->profiler({.wait = 0, .warmup = 0, .active = 1});
  trainer({next})->train(epochs(1));
  EXPECT_EQ(ProfilerTrace(next->traces().at(0)).steps(), std::vector<int64_t>{0});
}

TEST_F(ProfilerTest, DestructionInTheMiddleOfARunDisablesTheProfiler) {
  auto trainer = this->trainer({});
  {
    auto profiler = this->profiler({.wait = 0, .warmup = 0, .active = 100});
    profiler->on_training_run_start(*trainer);
    profiler->on_train_epoch_start(*trainer);
    EXPECT_FALSE(profiler_is_off());
  }
  EXPECT_TRUE(profiler_is_off());
  auto next = this->profiler({.wait = 0, .warmup = 0, .active = 1});
  this->trainer({next})->train(epochs(1));
  EXPECT_EQ(next->traces().size(), 1U);
}

TEST_F(ProfilerTest, TwoProfilersAtTheSameTimeAreAnError) {
  class Nested : public Callback {
   public:
    explicit Nested(std::shared_ptr<Callback> profiler) : profiler_(std::move(profiler)) {}
    void on_train_epoch_start(Trainer&) override {
      auto inner = ProfilerTest::trainer({profiler_});
      EXPECT_ERROR(inner->train(epochs(1)), "another run of this process uses a Profiler");
    }

   private:
    std::shared_ptr<Callback> profiler_;
  };
  auto profiler = this->profiler({.wait = 0, .warmup = 0, .active = 1});
  trainer({profiler, std::make_shared<Nested>(this->profiler({}))})->train(epochs(1));
  EXPECT_EQ(ProfilerTrace(profiler->traces().at(0)).steps(), std::vector<int64_t>{0});
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
    EXPECT_ERROR(trainer({profiler})->train(epochs(1)), "LibTorch's profiler cannot start: ");
  }
  kineto::enableProfiler(config, activities);
  EXPECT_ERROR(trainer({profiler})->train(epochs(1)), "LibTorch's profiler is already on");
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
  EXPECT_ERROR(trainer->train(epochs(1)), "/proc/no");
  EXPECT_EQ(trainer->num_updates(), 0);
}

TEST_F(ProfilerTest, AFullDiskIsReportedWithThePathAndDoesNotEndTheRun) {
  auto profiler = this->profiler({.wait = 0, .warmup = 0, .active = 1});
  auto trainer = this->trainer({profiler});
  {
    const FileSizeLimit limit(4096);
    EXPECT_EQ(trainer->train(epochs(1)).num_updates, 4);
  }
  EXPECT_EQ(profiler->num_failures(), 1);
  EXPECT_TRUE(profiler->traces().empty());
  EXPECT_TRUE(names().empty());
  ASSERT_FALSE(trainer->lines.empty());
  const std::string& line = trainer->lines.front();
  EXPECT_TRUE(line.starts_with("ERROR: the trace ")) << line;
  EXPECT_NE(line.find("run-1-cycle-1-rank-0.pt.trace.json was not written"), std::string::npos);
  EXPECT_TRUE(profiler_is_off());
}

}  // namespace
}  // namespace linkboy::testing::profiler_test
